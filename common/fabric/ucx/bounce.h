// Memory of a connection's own that UCX reads and writes for as long as it likes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

namespace oasiskv::fabric::ucx {

// Thread contract: not safe for concurrent use.
//
// Hands out stretches of `size` bytes in the order of the memory and takes them back in any order;
// room comes free when the oldest is back. Offsets are multiples of kAlign.
class BounceRing {
 public:
  static constexpr uint64_t kAlign = 64;

  explicit BounceRing(uint64_t size) : size_(size / kAlign * kAlign) {}

  // Where so many bytes (at least one) lie together, if there is room for them.
  std::optional<uint64_t> Take(uint64_t bytes);
  // What Take gave, once.
  void Give(uint64_t offset);
  uint64_t size() const { return size_; }
  bool empty() const { return taken_.empty(); }

 private:
  struct Stretch {
    uint64_t begin = 0;
    uint64_t end = 0;
    bool back = false;
  };

  const uint64_t size_;
  std::deque<Stretch> taken_;  // oldest first; those in front are out
};

}  // namespace oasiskv::fabric::ucx
