// A kernel that does nothing but read HBM: the rate that others are held against, and a neighbour
// that is bound by it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "client/working_set/cuda/kernels/kernels.h"

namespace oasiskv::bench {

enum class ReadOrder {
  // A CTA reads kReadChunk bytes that lie together, and then, where there are fewer CTAs than
  // chunks, another such chunk.
  kChunks,
  // All threads of the grid read side by side.
  kSideBySide,
};
inline constexpr uint64_t kReadChunk = uint64_t{64} << 10;

// Reads `bytes` (a multiple of 16) once with `ctas` CTAs of 512 threads, eight loads of 16 bytes in
// flight each. `sink` is written only if the bytes have one certain sum.
gpu::LaunchError ReadHbm(const void* from, uint64_t bytes, uint32_t* sink, uint32_t ctas,
                         ReadOrder order, gpu::Stream stream);

}  // namespace oasiskv::bench
