// KV elements to float32 and how they order; scalar, the definition that the SIMD code agrees with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "oasiskv/geometry.h"

namespace oasiskv {

// Exact: every float16 and bfloat16 value is a float32 value.
inline float Float16ToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  uint32_t wide;
  if (exponent == 0x1f) {  // infinity, or NaN (made quiet, as the processor's conversion does)
    wide = sign | 0x7f800000u | (mantissa << 13) | (mantissa != 0 ? 0x00400000u : 0u);
  } else if (exponent != 0) {
    wide = sign | ((exponent + 112) << 23) | (mantissa << 13);
  } else {  // zero or subnormal: mantissa x 2^-24, exact in float32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    std::memcpy(&wide, &magnitude, sizeof(wide));
    wide |= sign;
  }
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

inline float BFloat16ToFloat(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

// Element `index` of an array of `type` at `base`, which need not be aligned.
inline float LoadElement(ElementType type, const std::byte* base, uint64_t index) {
  if (type == ElementType::kFloat32) {
    float value;
    std::memcpy(&value, base + index * sizeof(value), sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, base + index * sizeof(bits), sizeof(bits));
  return type == ElementType::kBFloat16 ? BFloat16ToFloat(bits) : Float16ToFloat(bits);
}

}  // namespace oasiskv
