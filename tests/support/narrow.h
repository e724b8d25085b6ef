// Numbers as elements of 16 bits.
#pragma once

#include <cstdint>
#include <cstring>

#include "oasiskv/geometry.h"

namespace oasiskv {

// The bits of `value` as kBFloat16 or kFloat16, mantissa cut off: exact for what the type holds.
// Below 2^-14 kFloat16 is 0 of its sign. Pre-condition: |value| is below 2^16.
inline uint16_t NarrowBits(ElementType type, float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if (type == ElementType::kBFloat16) return static_cast<uint16_t>(bits >> 16);
  const uint32_t sign = (bits >> 16) & 0x8000, exponent = (bits >> 23) & 0xff;
  if (exponent < 113) return static_cast<uint16_t>(sign);
  return static_cast<uint16_t>(sign | ((exponent - 112) << 10) | ((bits >> 13) & 0x3ff));
}

}  // namespace oasiskv
