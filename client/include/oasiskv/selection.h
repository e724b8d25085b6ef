// How blocks are scored and selected: the choices that producers and working sets share.
#pragma once

#include <cstdint>

namespace oasiskv {

// How the scores of the query heads of one GQA group are combined into one score per block of their
// KV head. kNormalizedMax subtracts each head's own best score from its scores before it takes the
// maximum. Softmax normalises each query head by itself, so a score only says how far a block is
// below the best block of its head; under kMax a head with large scores decides for the whole group.
enum class GroupCombine { kMax = 0, kMean = 1, kSum = 2, kNormalizedMax = 3 };

// bound_weight a, in [0, 1]: how much of a summary's range counts. Let mid be the middle and half
// be half the width of the range of a block's keys in each dimension. A query head's score is
//   q.mid + a * sum_d |q_d| * half_d  =  (1 + a)/2 * sum_d max(q_d * min_d, q_d * max_d)
//                                      + (1 - a)/2 * sum_d min(q_d * min_d, q_d * max_d).
// 1: the upper bound of q.k over the block (the published score). 0: q.k of the range's middle.
// Only a key that is extreme in every dimension at once reaches the bound, so the bound favours
// blocks whose keys are widely spread.
inline constexpr double kDefaultBoundWeight = 1.0;

// The element type of a working set's key summaries. kFloat8 is E4M3 (4 significant bits, at most
// 448): for BF16 keys half the memory, and half the bytes that a score reads. Minima are rounded
// down and maxima up, so that the range still holds every key and the bound stays a bound. Keys
// beyond +-448 count as +-448; for them the bound does not hold. The wider range makes selection a
// little less exact. head_dim must be a multiple of 16. Frames, the wire and daemons keep summaries
// in the keys' element type; they are rounded when they enter the working set.
enum class SummaryType : uint8_t { kAsKeys = 0, kFloat8 = 1 };

// kCapped: at most floor(fetch_ratio x ranked blocks) blocks change per head, layer and step.
// kExact: the true top-K is made resident before attention; prediction only fetches ahead of it.
enum class SelectionMode { kCapped = 0, kExact = 1 };

// What happens when a block has not arrived and attention needs it. kWait: wait for it, until the
// deadline. kSkip: treat it as refused by the cap, so that attention reads the block that the page
// held before.
enum class LatePolicy { kWait = 0, kSkip = 1 };

// What happens when a request's source is gone. kFail: report the loss, so that the engine
// recomputes. kDegrade: go on with the resident blocks, and count it.
enum class LossPolicy { kFail = 0, kDegrade = 1 };

}  // namespace oasiskv
