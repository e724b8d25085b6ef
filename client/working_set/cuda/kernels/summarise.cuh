// The key summary of one entry by one warp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "client/selection/float8.h"
#include "client/working_set/cuda/kernels/layout.h"

namespace oasiskv::gpu {

// Floating-point numbers as signed integers of the same order, as client/selection/summary.cc has
// them: for negative ones the bits below the sign are flipped. A NaN counts as the greatest integer
// for the minimum and as the least for the maximum.
template <typename Format>
struct MinMax16 {  // two numbers of 16 bits in a word
  static constexpr uint32_t kMost = 0x7FFF7FFFu, kLeast = 0x80008000u;
  __device__ static uint32_t Flip(uint32_t x) { return x ^ (((x >> 15) & 0x00010001u) * 0x7FFFu); }
  __device__ static void Take(uint32_t x, uint32_t* low, uint32_t* high) {
    const uint32_t nan = __vcmpgtu2(x & kMost, Format::kInfinity * 0x00010001u);
    const uint32_t ordered = Flip(x);
    *low = __vmins2(*low, (ordered & ~nan) | (kMost & nan));
    *high = __vmaxs2(*high, (ordered & ~nan) | (kLeast & nan));
  }
  // Eight numbers in 8 bits each.
  using Codes = uint2;
  __device__ static uint32_t Two(uint32_t x, bool up) {
    return Format::ToFloat8(x & 0xFFFFu, up) | Format::ToFloat8(x >> 16, up) << 8;
  }
  __device__ static Codes ToFloat8(uint4 x, bool up) {
    return make_uint2(Two(x.x, up) | Two(x.y, up) << 16, Two(x.z, up) | Two(x.w, up) << 16);
  }
};
struct MinMax32 {
  static constexpr uint32_t kMost = 0x7FFFFFFFu, kLeast = 0x80000000u;
  __device__ static uint32_t Flip(uint32_t x) { return x ^ ((x >> 31) * 0x7FFFFFFFu); }
  __device__ static void Take(uint32_t x, uint32_t* low, uint32_t* high) {
    const bool nan = (x & kMost) > Float32Format::kInfinity;
    const int32_t ordered = static_cast<int32_t>(Flip(x));
    *low = min(static_cast<int32_t>(*low), nan ? INT32_MAX : ordered);
    *high = max(static_cast<int32_t>(*high), nan ? INT32_MIN : ordered);
  }
  using Codes = uint32_t;  // four
  __device__ static Codes ToFloat8(uint4 x, bool up) {
    return Float32Format::ToFloat8(x.x, up) | Float32Format::ToFloat8(x.y, up) << 8 |
           Float32Format::ToFloat8(x.z, up) << 16 | Float32Format::ToFloat8(x.w, up) << 24;
  }
};

// Half a summary's 16-byte piece at byte `at` of the half, of which keys have key_bytes bytes.
template <typename Order>
__device__ void StoreHalf(SummaryType type, uint32_t key_bytes, uint32_t at, uint4 ordered, bool up,
                          std::byte* summary) {
  const uint4 x = make_uint4(Order::Flip(ordered.x), Order::Flip(ordered.y), Order::Flip(ordered.z),
                             Order::Flip(ordered.w));
  if (type == SummaryType::kAsKeys) {
    *reinterpret_cast<uint4*>(summary + (up ? key_bytes : 0) + at) = x;
    return;
  }
  using Codes = typename Order::Codes;
  constexpr uint32_t kShrink = sizeof(uint4) / sizeof(Codes);
  *reinterpret_cast<Codes*>(summary + ((up ? key_bytes : 0) + at) / kShrink) =
      Order::ToFloat8(x, up);
}

template <typename Order>
__device__ void SummarisePieces(SummaryType type, uint32_t key_bytes, const std::byte* keys,
                                int64_t token_stride, uint32_t tokens, std::byte* summary,
                                uint32_t lane) {
  constexpr uint32_t kMost = Order::kMost, kLeast = Order::kLeast;
  for (uint32_t at = lane * 16; at < key_bytes; at += 32 * 16) {
    uint4 low = make_uint4(kMost, kMost, kMost, kMost);
    uint4 high = make_uint4(kLeast, kLeast, kLeast, kLeast);
#pragma unroll 4
    for (uint32_t t = 0; t < tokens; ++t) {
      const uint4 x = *reinterpret_cast<const uint4*>(keys + t * token_stride + at);
      Order::Take(x.x, &low.x, &high.x);
      Order::Take(x.y, &low.y, &high.y);
      Order::Take(x.z, &low.z, &high.z);
      Order::Take(x.w, &low.w, &high.w);
    }
    StoreHalf<Order>(type, key_bytes, at, low, false, summary);
    StoreHalf<Order>(type, key_bytes, at, high, true, summary);
  }
}

// Writes min[dim] then max[dim] of `tokens` keys, key t at keys + t * token_stride, to `summary`
// (device memory, or host memory that the device may write), as keys or in E4M3. Bits equal
// SummariseKeys and SummaryToFloat8 of the cpu backend. Called by a whole warp; all addresses, the
// stride and key_bytes are multiples of 16.
__device__ inline void SummariseWarp(Element element, SummaryType type, uint32_t key_bytes,
                                     const std::byte* keys, int64_t token_stride, uint32_t tokens,
                                     std::byte* summary, uint32_t lane) {
  switch (element) {
    case Element::kFloat16:
      return SummarisePieces<MinMax16<Float16Format>>(type, key_bytes, keys, token_stride, tokens,
                                                      summary, lane);
    case Element::kBFloat16:
      return SummarisePieces<MinMax16<BFloat16Format>>(type, key_bytes, keys, token_stride, tokens,
                                                       summary, lane);
    case Element::kFloat32:
      return SummarisePieces<MinMax32>(type, key_bytes, keys, token_stride, tokens, summary, lane);
    case Element::kFloat8:  // of no key
      return;
  }
}

}  // namespace oasiskv::gpu
