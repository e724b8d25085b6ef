// The key summary of one entry by one warp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "client/working_set/cuda/layout.h"

namespace oasiskv::gpu {

// Floating-point numbers as signed integers of the same order, as client/working_set/summary.cc has
// them: for negative ones the bits below the sign are flipped. A NaN counts as the greatest integer
// for the minimum and as the least for the maximum.
struct MinMax16 {  // two numbers of 16 bits in a word
  uint32_t infinity;
  static constexpr uint32_t kMost = 0x7FFF7FFFu, kLeast = 0x80008000u;
  __device__ static uint32_t Flip(uint32_t x) { return x ^ (((x >> 15) & 0x00010001u) * 0x7FFFu); }
  __device__ void Take(uint32_t x, uint32_t* low, uint32_t* high) const {
    const uint32_t nan = __vcmpgtu2(x & kMost, infinity * 0x00010001u);
    const uint32_t ordered = Flip(x);
    *low = __vmins2(*low, (ordered & ~nan) | (kMost & nan));
    *high = __vmaxs2(*high, (ordered & ~nan) | (kLeast & nan));
  }
};
struct MinMax32 {
  uint32_t infinity;
  static constexpr uint32_t kMost = 0x7FFFFFFFu, kLeast = 0x80000000u;
  __device__ static uint32_t Flip(uint32_t x) { return x ^ ((x >> 31) * 0x7FFFFFFFu); }
  __device__ void Take(uint32_t x, uint32_t* low, uint32_t* high) const {
    const bool nan = (x & kMost) > infinity;
    const int32_t ordered = static_cast<int32_t>(Flip(x));
    *low = min(static_cast<int32_t>(*low), nan ? INT32_MAX : ordered);
    *high = max(static_cast<int32_t>(*high), nan ? INT32_MIN : ordered);
  }
};

template <typename Order>
__device__ void SummarisePieces(Order order, uint32_t key_bytes, const std::byte* keys,
                                int64_t token_stride, uint32_t tokens, std::byte* summary,
                                uint32_t lane) {
  constexpr uint32_t kMost = Order::kMost, kLeast = Order::kLeast;
  for (uint32_t at = lane * 16; at < key_bytes; at += 32 * 16) {
    uint4 low = make_uint4(kMost, kMost, kMost, kMost);
    uint4 high = make_uint4(kLeast, kLeast, kLeast, kLeast);
#pragma unroll 4
    for (uint32_t t = 0; t < tokens; ++t) {
      const uint4 x = *reinterpret_cast<const uint4*>(keys + t * token_stride + at);
      order.Take(x.x, &low.x, &high.x);
      order.Take(x.y, &low.y, &high.y);
      order.Take(x.z, &low.z, &high.z);
      order.Take(x.w, &low.w, &high.w);
    }
    *reinterpret_cast<uint4*>(summary + at) =
        make_uint4(Order::Flip(low.x), Order::Flip(low.y), Order::Flip(low.z), Order::Flip(low.w));
    *reinterpret_cast<uint4*>(summary + key_bytes + at) = make_uint4(
        Order::Flip(high.x), Order::Flip(high.y), Order::Flip(high.z), Order::Flip(high.w));
  }
}

// Writes min[dim] then max[dim] of `tokens` keys, key t at keys + t * token_stride, to `summary`
// (device memory, or host memory that the device may write). Bits equal SummariseKeys of the cpu
// backend. Called by a whole warp; all addresses, the stride and key_bytes are multiples of 16.
__device__ inline void SummariseWarp(Element element, uint32_t key_bytes, const std::byte* keys,
                                     int64_t token_stride, uint32_t tokens, std::byte* summary,
                                     uint32_t lane) {
  switch (element) {
    case Element::kFloat16:
      return SummarisePieces(MinMax16{0x7C00}, key_bytes, keys, token_stride, tokens, summary,
                             lane);
    case Element::kBFloat16:
      return SummarisePieces(MinMax16{0x7F80}, key_bytes, keys, token_stride, tokens, summary,
                             lane);
    case Element::kFloat32:
      return SummarisePieces(MinMax32{0x7F800000}, key_bytes, keys, token_stride, tokens, summary,
                             lane);
  }
}

}  // namespace oasiskv::gpu
