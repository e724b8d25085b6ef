// The k best scores, in an order that depends on nothing but the scores.
#pragma once

#include <cstdint>
#include <vector>

namespace oasiskv {

// Indices of the k highest of scores[0..n) into out[0..k), best first: ties (0.0 and -0.0 are one)
// by lower index, NaN after every number. Where n < k the rest of `out` is -1. Returns min(n, k).
// `scratch` is working memory that a caller keeps to save allocations.
uint32_t TopK(const float* scores, uint32_t n, uint32_t k, int32_t* out,
              std::vector<uint64_t>& scratch);
uint32_t TopK(const float* scores, uint32_t n, uint32_t k, int32_t* out);

}  // namespace oasiskv
