// E4M3 by its definition, slow and obvious, for tests that compare with it.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace oasiskv {

// The value of a code: (-1)^s x 2^(e-7) x 1.mmm, or 2^-6 x 0.mmm where e is 0; NaN where all else
// is ones.
inline double Float8ByDefinition(uint32_t code) {
  const int e = (code >> 3) & 15, m = code & 7;
  if (e == 15 && m == 7) return std::nan("");
  const double magnitude = e == 0 ? std::ldexp(m, -9) : std::ldexp(8 + m, e - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// The code of the number's sign that is nearest among those not below it (`up`), or not above it;
// where there is none, the outermost of that sign.
inline uint32_t RoundedByDefinition(float value, bool up) {
  static const std::array<double, 127> magnitudes = [] {  // rising, by code
    std::array<double, 127> all{};
    for (uint32_t code = 0; code < all.size(); ++code) all[code] = Float8ByDefinition(code);
    return all;
  }();
  if (std::isnan(value)) return 0x7f;
  const bool negative = std::signbit(value);
  const double magnitude = std::fabs(static_cast<double>(value));
  uint32_t code = 0;
  if (negative != up) {  // away from 0
    const auto at = std::lower_bound(magnitudes.begin(), magnitudes.end(), magnitude);
    code = static_cast<uint32_t>(std::min(at, magnitudes.end() - 1) - magnitudes.begin());
  } else {
    const auto above = std::upper_bound(magnitudes.begin(), magnitudes.end(), magnitude);
    code = static_cast<uint32_t>(above - magnitudes.begin()) - 1;
  }
  return code | (negative ? 0x80 : 0);
}

}  // namespace oasiskv
