// KV elements to float32 and how they order; scalar, the definition that the SIMD code agrees with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "oasiskv/geometry.h"

namespace oasiskv {

// Exact: every float16 and bfloat16 value is a float32 value.
float Float16ToFloat(uint16_t bits);

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
