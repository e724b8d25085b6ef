// KV elements and scores in a kernel, with the bits of client/selection/element.h and score.cc.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "client/working_set/cuda/kernels/kernels.h"
#include "client/working_set/cuda/kernels/layout.h"

namespace oasiskv::gpu {

// Two neighbouring elements: as they lie in memory (Bits), as the arithmetic has them (Loaded), and
// their values. All conversions are exact.
template <Element kElement>
struct ElementPair {
  using Bits = uint32_t;
  using Loaded = uint32_t;
  static constexpr uint32_t kBytes = 2;
  __device__ static Loaded Load(Bits bits) { return bits; }
  __device__ static float2 Values(Loaded bits) {
    if constexpr (kElement == Element::kBFloat16) {
      return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u));
    } else {
      return __half22float2(*reinterpret_cast<const __half2*>(&bits));
    }
  }
};
template <>
struct ElementPair<Element::kFloat32> {
  using Bits = float2;
  using Loaded = float2;
  static constexpr uint32_t kBytes = 4;
  __device__ static Loaded Load(Bits bits) { return bits; }
  __device__ static float2 Values(Loaded bits) { return bits; }
};
// Every E4M3 number is a float16 one, and its NaN is a NaN there.
template <>
struct ElementPair<Element::kFloat8> {
  using Bits = uint16_t;
  using Loaded = uint32_t;
  static constexpr uint32_t kBytes = 1;
  __device__ static Loaded Load(Bits bits) {
    Loaded out;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(out) : "h"(bits));
    return out;
  }
  __device__ static float2 Values(Loaded bits) {
    return ElementPair<Element::kFloat16>::Values(bits);
  }
};

__device__ inline float LoadQuery(const void* queries, QueryType type, int64_t index) {
  switch (type) {
    case QueryType::kBFloat16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(queries)[index]);
    case QueryType::kFloat16:
      return __half2float(static_cast<const __half*>(queries)[index]);
    case QueryType::kFloat32:
      break;
  }
  return static_cast<const float*>(queries)[index];
}

__device__ inline float2 LoadQueryPair(const void* queries, QueryType type, int64_t index) {
  return make_float2(LoadQuery(queries, type, index), LoadQuery(queries, type, index + 1));
}

// A number that grows with the score; 0 for NaN, below every number's. -0.0 counts as 0.0.
__device__ inline uint32_t OrderOf(float score) {
  if (score != score) return 0;
  const uint32_t bits = __float_as_uint(__fadd_rn(score, 0.0f));
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
// Pre-condition: the order of a number.
__device__ inline float NumberOf(uint32_t order) {
  return __uint_as_float((order & 0x80000000u) != 0 ? order & 0x7fffffffu : ~order);
}

// How the sums of a KV head's query heads become one score, with the order of additions of
// client/selection/score.h.

// A head's sum less the greatest of all blocks' (`best`).
__device__ inline float BelowBest(float sum, float best) {
  return sum == best ? 0.0f : __fsub_rn(sum, best);
}

// The score of the heads so far, and the next head's.
__device__ inline float Combined(GroupCombine combine, float so_far, float next) {
  if (combine == GroupCombine::kMean || combine == GroupCombine::kSum) {
    return __fadd_rn(so_far, next);
  }
  return next > so_far || next != next ? next : so_far;  // a NaN stays
}

// The score of all `group` heads.
__device__ inline float Finished(GroupCombine combine, float score, uint32_t group) {
  return combine == GroupCombine::kMean ? __fdiv_rn(score, static_cast<float>(group)) : score;
}

}  // namespace oasiskv::gpu
