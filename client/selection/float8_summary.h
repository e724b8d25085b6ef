// Key summaries in E4M3.
#pragma once

#include <cstddef>
#include <cstdint>

#include "oasiskv/geometry.h"

namespace oasiskv {

// Exact; NaN is quiet.
float Float8ToFloat(uint8_t code);

// min[head_dim] then max[head_dim] of `type` into as many E4M3 numbers: minima downward, maxima
// upward.
void SummaryToFloat8(ElementType type, uint32_t head_dim, const std::byte* summary,
                     std::byte* float8);
// The same numbers in the element type, in place: each E4M3 number is one of every type.
void RoundSummaryToFloat8(ElementType type, uint32_t head_dim, std::byte* summary);

}  // namespace oasiskv
