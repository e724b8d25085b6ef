// Bounds of query heads against blocks, with the order of additions of client/selection/score.h.
//
// A warp scores 16 blocks at a time. Thread 8 g + j has partial sums 2 j and 2 j + 1 of four of
// them: of block 4 (i ^ (j / 2)) + g in its place i, for kHeads query heads. Because a thread's
// places depend on j in this way, folding partial sums sends the upper half of the places and keeps
// the lower: the thread that gets them has the same blocks there.
#pragma once

#include <cstdint>

#include "client/working_set/cuda/kernels/element.cuh"
#include "client/working_set/cuda/kernels/score_stream.cuh"

namespace oasiskv::gpu {

inline constexpr uint32_t kPlaces = 4;

// By the sign bit.
__device__ inline bool Negative(float q) { return static_cast<int32_t>(__float_as_uint(q)) < 0; }

// Index in args.queries of a pair's first query.
__device__ inline int64_t FirstQuery(const ScoreArgs& args, uint32_t pair) {
  const uint32_t row = pair / args.kv_heads;
  return row * args.row_stride + int64_t{pair - row * args.kv_heads} * args.group * args.head_dim;
}

// A summary's box, shrunk by the bound weight.
template <bool kShrunk>
__device__ inline void Shrink(const ScoreArgs& args, float& low, float& high) {
  if constexpr (kShrunk) {
    const float min = low, max = high;
    low = __fadd_rn(__fmul_rn(args.near, min), __fmul_rn(args.far, max));
    high = __fadd_rn(__fmul_rn(args.near, max), __fmul_rn(args.far, min));
  }
}

// The queries of one pass in shared memory: for every 16 dimensions and head a row of 16 numbers,
// zeros where there is none, and of 8 masks: half e of mask j is all ones where number 2 j + e
// takes the maximum (its sign bit is 0), zeros where it takes the minimum.
inline constexpr uint32_t kQueryRow = kLanes + kLanes / 2;
__host__ __device__ inline uint32_t QueryWords(uint32_t dims, uint32_t heads) {
  return dims / kLanes * heads * kQueryRow;
}
template <uint32_t kHeads>
__device__ inline uint32_t QueryPlace(uint32_t head, uint32_t dim) {
  return (dim / kLanes * kHeads + head) * kQueryRow + dim % kLanes;
}

template <Element kElement, uint32_t kHeads, bool kShrunk>
class Bounds {
 public:
  using Pair = ElementPair<kElement>;
  using Stage = StageLayout<kElement>;
  // The bound that a query's sign picks, for two dimensions by one instruction.
  static constexpr bool kPicks = kElement != Element::kFloat32 && !kShrunk;

  // The block that Fold leaves this thread with, of the tile's 16.
  __device__ static uint32_t Block() {
    return (threadIdx.x % 8 / 2) * kPlaces + threadIdx.x % 32 / 8;
  }

  __device__ void Clear() {
#pragma unroll
    for (uint32_t i = 0; i < kPlaces; ++i) {
#pragma unroll
      for (uint32_t h = 0; h < kHeads; ++h) sum_[i][h] = make_float2(0.0f, 0.0f);
    }
  }

  // `at`: place of the stage in `shared`, a multiple of its size. `queries`: of the stage's first
  // dimension.
  __device__ void Add(const ScoreArgs& args, const std::byte* shared, uint32_t at,
                      const float* queries) {
    const uint32_t j = threadIdx.x % 8, g = threadIdx.x % 32 / 8;
    const uint32_t mine =
        at | (j / 2 * kPlaces + g) * 2 * kSegment | Stage::Swizzle(g) | j * 2 * Pair::kBytes;
#pragma unroll
    for (uint32_t u = 0; u < Stage::kUnits; ++u) {
      float2 q[kHeads];
      uint32_t mask[kHeads];
#pragma unroll
      for (uint32_t h = 0; h < kHeads; ++h) {
        const float* const row = queries + (u * kHeads + h) * kQueryRow;
        q[h] = *reinterpret_cast<const float2*>(row + 2 * j);
        if constexpr (kPicks) mask[h] = __float_as_uint(row[kLanes + j]);
      }
      typename Pair::Bits mins[kPlaces], maxs[kPlaces];
#pragma unroll
      for (uint32_t i = 0; i < kPlaces; ++i) {
        const std::byte* const from =
            shared + (mine ^ (i * kPlaces * 2 * kSegment + u * Stage::kUnit));
        mins[i] = *reinterpret_cast<const typename Pair::Bits*>(from);
        maxs[i] = *reinterpret_cast<const typename Pair::Bits*>(from + kSegment);
      }
#pragma unroll
      for (uint32_t i = 0; i < kPlaces; ++i) {
        const auto min = Pair::Load(mins[i]), max = Pair::Load(maxs[i]);
        if constexpr (kPicks) {
#pragma unroll
          for (uint32_t h = 0; h < kHeads; ++h) {
            const float2 bound = Pair::Values((max & mask[h]) | (min & ~mask[h]));
            float2& sum = sum_[i][h];
            sum.x = __fmaf_rn(q[h].x, bound.x, sum.x);
            sum.y = __fmaf_rn(q[h].y, bound.y, sum.y);
          }
        } else {
          float2 low = Pair::Values(min), high = Pair::Values(max);
          Shrink<kShrunk>(args, low.x, high.x);
          Shrink<kShrunk>(args, low.y, high.y);
#pragma unroll
          for (uint32_t h = 0; h < kHeads; ++h) {
            float2& sum = sum_[i][h];
            sum.x = __fmaf_rn(q[h].x, Negative(q[h].x) ? low.x : high.x, sum.x);
            sum.y = __fmaf_rn(q[h].y, Negative(q[h].y) ? low.y : high.y, sum.y);
          }
        }
      }
    }
  }

  // The sums of Block(). Called by the whole warp.
  __device__ void Fold(float (&out)[kHeads]) {
    FoldPlaces<2>();
    FoldPlaces<1>();
#pragma unroll
    for (uint32_t h = 0; h < kHeads; ++h) {
      const float2 sum = Plus(sum_[0][h], 1, sum_[0][h]);
      out[h] = __fadd_rn(sum.x, sum.y);
    }
  }

 private:
  __device__ static float2 Plus(float2 own, uint32_t distance, float2 sent) {
    return make_float2(__fadd_rn(own.x, __shfl_xor_sync(~0u, sent.x, distance)),
                       __fadd_rn(own.y, __shfl_xor_sync(~0u, sent.y, distance)));
  }
  template <uint32_t kKept>
  __device__ void FoldPlaces() {
#pragma unroll
    for (uint32_t i = 0; i < kKept; ++i) {
#pragma unroll
      for (uint32_t h = 0; h < kHeads; ++h) {
        sum_[i][h] = Plus(sum_[i][h], 2 * kKept, sum_[i + kKept][h]);
      }
    }
  }

  float2 sum_[kPlaces][kHeads];
};

}  // namespace oasiskv::gpu
