// Numbers as 16-bit elements.
#pragma once

#include <cstdint>
#include <cstring>

#include "oasiskv/geometry.h"

namespace oasiskv {

// The bits of `value` as kBFloat16 or kFloat16, with the mantissa cut off: exact for numbers of the
// type. As kFloat16, numbers below 2^-14 become 0 with their sign. |value| must be below 2^16.
inline uint16_t NarrowBits(ElementType type, float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if (type == ElementType::kBFloat16) return static_cast<uint16_t>(bits >> 16);
  const uint32_t sign = (bits >> 16) & 0x8000, exponent = (bits >> 23) & 0xff;
  if (exponent < 113) return static_cast<uint16_t>(sign);
  return static_cast<uint16_t>(sign | ((exponent - 112) << 10) | ((bits >> 13) & 0x3ff));
}

}  // namespace oasiskv
