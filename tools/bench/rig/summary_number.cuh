// One number of a summary pool of BF16 keys, for the kernels that fill pools with random ones.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "client/selection/float8.h"
#include "oasiskv/selection.h"

namespace oasiskv::bench {

// Number `at` of `pool`: a minimum, or a maximum (`up`), as the working set's conversion rounds it.
__device__ inline void StoreSummaryNumber(SummaryType type, void* pool, uint64_t at, float value,
                                          bool up) {
  const __nv_bfloat16 key = __float2bfloat16(value);
  if (type == SummaryType::kFloat8) {
    static_cast<uint8_t*>(pool)[at] =
        static_cast<uint8_t>(BFloat16Format::ToFloat8(__bfloat16_as_ushort(key), up));
  } else {
    static_cast<__nv_bfloat16*>(pool)[at] = key;
  }
}

}  // namespace oasiskv::bench
