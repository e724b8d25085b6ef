// What the threads of a warp do together.
#pragma once

#include <cstdint>

namespace oasiskv::gpu {

// The sum over the lanes up to and with this one. Called by the whole warp.
__device__ inline uint32_t SumUpto(uint32_t value) {
#pragma unroll
  for (uint32_t d = 1; d < 32; d *= 2) {
    const uint32_t other = __shfl_up_sync(~0u, value, d);
    if (threadIdx.x % 32 >= d) value += other;
  }
  return value;
}

}  // namespace oasiskv::gpu
