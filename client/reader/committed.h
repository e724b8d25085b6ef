// Which (layer, block) of an attached sequence may be read.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "client/connection/control.h"

namespace oasiskv::client {

// Thread contract: immutable after construction; safe for concurrent use.
//
// A sealed sequence is committed whole and takes no memory here; else it takes one bit per (block, layer).
class CommittedSet {
 public:
  static CommittedSet Everything() { return CommittedSet(); }
  // Runs that reach beyond the shape are cut to it.
  CommittedSet(uint32_t layers, uint32_t blocks, std::span<const LayerBlocks> runs)
      : everything_(false), layers_(layers), bits_(uint64_t{layers} * blocks, false) {
    for (const LayerBlocks& run : runs) {
      for (uint64_t b = run.first_block;
           b < uint64_t{run.first_block} + run.block_count && b < blocks; ++b) {
        for (uint64_t l = run.first_layer;
             l < uint64_t{run.first_layer} + run.layer_count && l < layers; ++l) {
          bits_[b * layers + l] = true;
        }
      }
    }
  }

  // Pre-condition: layer and block lie inside the shape.
  bool Has(uint32_t layer, uint32_t block) const {
    return everything_ || bits_[uint64_t{block} * layers_ + layer];
  }

 private:
  CommittedSet() = default;

  bool everything_ = true;
  uint32_t layers_ = 0;
  std::vector<bool> bits_;
};

}  // namespace oasiskv::client
