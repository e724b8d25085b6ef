// The key summary of one entry: coordinate-wise min and max of its keys; also in E4M3.
#pragma once

#include <cstddef>
#include <cstdint>

#include "oasiskv/geometry.h"

namespace oasiskv {

// Writes min[head_dim] then max[head_dim] of `tokens` keys (key t at keys + t * key_stride bytes)
// in the element type, bit patterns of the keys themselves. Where a coordinate is NaN in some
// tokens the others decide; where it is NaN in all, both are NaN (of any pattern). -0.0 is less
// than 0.0. Pre-condition: tokens >= 1.
void SummariseKeys(ElementType type, uint32_t head_dim, const std::byte* keys, int64_t key_stride,
                   uint32_t tokens, std::byte* summary);

// Exact; NaN is quiet.
float Float8ToFloat(uint8_t code);

// min[head_dim] then max[head_dim] of `type` into as many E4M3 numbers: minima downward, maxima
// upward.
void SummaryToFloat8(ElementType type, uint32_t head_dim, const std::byte* summary,
                     std::byte* float8);
// The same numbers in the element type, in place: each E4M3 number is one of every type.
void RoundSummaryToFloat8(ElementType type, uint32_t head_dim, std::byte* summary);

}  // namespace oasiskv
