#include "client/selection/element.h"

namespace oasiskv {

float Float16ToFloat(uint16_t bits) {
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

}  // namespace oasiskv
