// The key summary of one entry: coordinate-wise min and max of its keys.
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

}  // namespace oasiskv
