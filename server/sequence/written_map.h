// Which bytes of an open sequence's frames the daemon has seen written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace oasiskv::server {

// Thread contract: not safe for concurrent use (the core's mutex guards it).
//
// Written bytes are kept as pieces, joined where they touch. A writer can cut a frame into as many
// as it likes, so a block has at most kMostPieces: what would be one more is not noted, and so
// cannot be committed before the bytes beside it are written too.
class WrittenMap {
 public:
  static constexpr size_t kMostPieces = 4096;

  // Bytes [begin, end) of `block`'s frame.
  void Add(uint32_t block, uint32_t begin, uint32_t end);
  bool Covers(uint32_t block, uint32_t begin, uint32_t end) const;
  uint64_t bytes() const;
  void Clear() { *this = WrittenMap(); }

 private:
  struct Piece {
    uint32_t begin = 0, end = 0;
  };
  std::vector<std::vector<Piece>> blocks_;  // of each block its pieces, ascending, none touching
};

}  // namespace oasiskv::server
