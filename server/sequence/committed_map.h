// Which layers of which blocks of an open sequence are committed: one bit each.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "server/sequence/types.h"

namespace oasiskv::server {

// Thread contract: not safe for concurrent use. Arguments must be inside the map.
class CommittedMap {
 public:
  explicit CommittedMap(uint32_t layers) : layers_(layers), words_((layers + 63) / 64) {}

  void Resize(uint32_t blocks);
  void Set(const LayerBlocks& range);
  // The first layer of [first, last] of `block` that is (not) committed.
  std::optional<uint32_t> FirstMissing(uint32_t block, uint32_t first, uint32_t last) const;
  std::optional<uint32_t> FirstCommitted(uint32_t block, uint32_t first, uint32_t last) const;
  // What is committed, as ranges; blocks of equal layers are put together. Nothing when that takes
  // more than `most`: a caller that commits in a pattern can make one per layer and block.
  std::optional<std::vector<LayerBlocks>> Runs(size_t most) const;
  // How many bits are set.
  uint64_t count() const { return count_; }
  uint64_t bytes() const { return bits_.capacity() * sizeof(uint64_t); }
  void Clear() { *this = CommittedMap(layers_); }

 private:
  std::optional<uint32_t> Find(uint32_t block, uint32_t first, uint32_t last, bool committed) const;

  uint32_t layers_;
  uint32_t words_;  // per block
  uint64_t count_ = 0;
  std::vector<uint64_t> bits_;  // [block][word]
};

}  // namespace oasiskv::server
