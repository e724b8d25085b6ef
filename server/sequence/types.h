// What is said of a sequence across the core's interface.
#pragma once

#include <cstdint>
#include <string>

namespace oasiskv::server {

// Values equal those of oasiskv.v1.SequenceState.
enum class SequenceState : uint8_t { kOpen = 1, kSealed = 2, kReleased = 3, kAborted = 4 };

// Layers [first_layer, first_layer + layer_count) of blocks [first_block, first_block +
// block_count).
struct LayerBlocks {
  uint32_t first_layer = 0, layer_count = 0, first_block = 0, block_count = 0;
};

struct FirstTopK {
  uint32_t k = 0;
  std::string indices;  // int32 little-endian [layer][head][k]
};

}  // namespace oasiskv::server
