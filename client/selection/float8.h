// Summaries in 8 bits: E4M3 as GPUs have it ("FN": 4 exponent bits of bias 7, 3 mantissa bits, no
// infinities, greatest number 448, 0x7F and 0xFF are NaN), rounded outward so that the box still
// holds every key. Integer arithmetic on the number's own bits; the kernels are compiled from the
// same lines and so give the same bits: no header of the host's alone here.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define OASISKV_HOST_DEVICE __host__ __device__
#else
#define OASISKV_HOST_DEVICE
#endif

namespace oasiskv {

inline constexpr uint32_t kFloat8Greatest = 0x7e;  // 448
inline constexpr uint32_t kFloat8Nan = 0x7f;
// Elements of a half summary that fill 16 bytes: kernels move no less.
inline constexpr uint32_t kFloat8HeadDim = 16;

// Floating-point numbers of kExponent exponent bits and kMantissa mantissa bits, as IEEE 754 has
// them.
template <uint32_t kExponent, uint32_t kMantissa>
struct FloatFormat {
  static constexpr uint32_t kSign = 1u << (kExponent + kMantissa);
  static constexpr uint32_t kInfinity = ((1u << kExponent) - 1) << kMantissa;

  // The least E4M3 number that is not below the one of `bits` (`up`: for a maximum), or the
  // greatest not above it. Beyond +-448 it is +-448. -0 and what rounds to it keep their sign; NaN
  // is 0x7F.
  OASISKV_HOST_DEVICE static constexpr uint32_t ToFloat8(uint32_t bits, bool up) {
    constexpr uint32_t kBias = (1u << (kExponent - 1)) - 1;
    constexpr uint32_t kLeastNormal = kBias - 6;  // exponent field of 2^-6, E4M3's least normal one
    constexpr uint32_t kDropped = kMantissa - 3;  // mantissa bits that E4M3 has not
    const uint32_t magnitude = bits & (kSign - 1);
    const uint32_t field = magnitude >> kMantissa;
    const uint32_t mantissa =
        (magnitude & ((1u << kMantissa) - 1)) | (field != 0 ? 1u << kMantissa : 0);
    const uint32_t exponent = field != 0 ? field : 1;
    // Below 2^-6 the unit stays 2^-9. A mantissa has 24 bits at most: a shift of 31 leaves none.
    const uint32_t below = exponent < kLeastNormal ? kLeastNormal - exponent : 0;
    const uint32_t shift = kDropped + below < 31 ? kDropped + below : 31;
    const bool negative = (bits & kSign) != 0;
    const uint32_t away = negative != up ? (1u << shift) - 1 : 0;
    // A carry out of the mantissa is the next exponent.
    const uint32_t code = ((mantissa + away) >> shift) +
                          (exponent > kLeastNormal ? (exponent - kLeastNormal) << 3 : 0);
    const uint32_t bounded = code < kFloat8Greatest ? code : kFloat8Greatest;
    return magnitude > kInfinity ? kFloat8Nan : bounded | (negative ? 0x80u : 0);
  }
};
using Float16Format = FloatFormat<5, 10>;
using BFloat16Format = FloatFormat<8, 7>;
using Float32Format = FloatFormat<8, 23>;

}  // namespace oasiskv
