// How promising a block is for a query, from its key summary alone; the best blocks, in an order
// that depends on nothing but the scores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "oasiskv/geometry.h"
#include "oasiskv/selection.h"

namespace oasiskv {

// One KV head's summaries and the queries of its group. Query head h of a model belongs to KV head
// h / (query_heads / kv_heads), so a group's queries are adjacent in [query_head][head_dim].
struct ScoreInput {
  // Block b's min[head_dim] then max[head_dim] at summaries + b * block_stride bytes; any
  // alignment.
  const std::byte* summaries = nullptr;
  int64_t block_stride = 0;
  ElementType element_type = ElementType::kUnspecified;
  uint32_t head_dim = 0;
  uint32_t blocks = 0;
  const float* queries = nullptr;  // [group][head_dim]
  uint32_t group = 1;              // query heads of this KV head
  GroupCombine combine = GroupCombine::kMax;
  double bound_weight = kDefaultBoundWeight;  // selection.h
};

// scores[b] = combine over the group of sum_d q_d * bound_d, where bound is low_d for a negative
// q_d (by its sign bit) and high_d otherwise: the greatest product that a key of the box has. With
// a bound weight of 1 low and high are the summary's min and max, and a head's sum is an upper
// bound of q.k over the block's keys. A smaller weight a shrinks that box about its middle, in
// float32:
//   low = (1 + a)/2 * min + (1 - a)/2 * max,   high = (1 + a)/2 * max + (1 - a)/2 * min.
// kNormalizedMax: the greatest over the group of the head's sum less that head's greatest sum over
// the blocks, at most 0; the best block of each head has 0, also where it is infinite. `scratch`
// holds memory only.
//
// The arithmetic is fixed, so that every implementation gives the same bits: 16 partial sums,
// dimension d into sum d % 16 by rising d with one rounding (a fused multiply-add), then folded 8,
// 4, 2, 1; heads are combined by rising head. A NaN of one head makes the block's score NaN.
void ScoreBlocks(const ScoreInput& input, float* scores, std::vector<float>& scratch);

// The implementations behind ScoreBlocks, for tests that compare them.
enum class ScoreKernel { kScalar = 0, kAvx2 = 1 };
bool ScoreKernelSupported(ScoreKernel kernel);  // by this processor
// Pre-condition: supported.
void ScoreBlocksWith(ScoreKernel kernel, const ScoreInput& input, float* scores,
                     std::vector<float>& scratch);

// Indices of the k highest of scores[0..n) into out[0..k), best first: ties (0.0 and -0.0 are one)
// by lower index, NaN after every number. Where n < k the rest of `out` is -1. Returns min(n, k).
// `scratch` is working memory that a caller keeps to save allocations.
uint32_t TopK(const float* scores, uint32_t n, uint32_t k, int32_t* out,
              std::vector<uint64_t>& scratch);

}  // namespace oasiskv
