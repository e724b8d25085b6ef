// Which blocks a step changes: the delta between a prediction and the residents of one KV head.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace oasiskv {

// One page of one head that is to hold another block.
struct Change {
  uint32_t head = 0;
  uint32_t page = 0;
  int32_t block = -1;
  bool promoted = false;            // comes from the local page, not from a source
  const std::byte* from = nullptr;  // the entry, once it is known where it will be
};

struct SelectCounts {
  uint64_t predicted = 0, hit = 0, refused = 0;
};

inline constexpr int32_t kNoBlock = -1;

// Thread contract: used by one thread at a time; holds scratch memory only, so that equal inputs
// give equal plans.
class Selector {
 public:
  explicit Selector(uint32_t max_blocks) : page_of_(max_blocks, 0) {}

  // `predicted`: distinct blocks, best first (a -1 ends it). Those that `map` holds stay and get
  // the stamp `now`. `promoted` (one of `predicted`, or kNoBlock) takes the first victim and is
  // never refused. Of the other missing ones the first `cap` are paired with the next victims:
  // empty pages first, then residents that were not predicted by oldest stamp, ties by lower page.
  // Appends to `changes` and adds to `counts`; `map` is changed by the transfer only.
  void Select(uint32_t head, std::span<const int32_t> predicted, int32_t promoted, uint32_t cap,
              uint64_t now, std::span<const int32_t> map, std::span<uint64_t> stamps,
              std::vector<Change>* changes, SelectCounts* counts);

  // |a and b| for lists of distinct blocks, each ended by a -1 or its length.
  uint32_t CountCommon(std::span<const int32_t> a, std::span<const int32_t> b);

 private:
  std::vector<uint32_t> page_of_;  // block -> page + 1; all 0 between calls
  std::vector<uint32_t> victims_;
  std::vector<bool> kept_;
};

// Makes `promoted` one of the list's blocks: it takes the first free place, or the last one's.
void IncludePromoted(std::span<int32_t> predicted, int32_t promoted);

}  // namespace oasiskv
