// What a user chooses about selection; shared by both sides.
#pragma once

#include <cstdint>

namespace oasiskv {

// How the query heads of one GQA group are combined into one score per block of their KV head.
// kNormalizedMax takes from each head's scores that head's own best one before the maximum. Softmax
// normalises every query head by itself, so that a score says only how much less than its head's
// best block a block is worth; under kMax a head with large scores speaks for the whole group.
enum class GroupCombine { kMax = 0, kMean = 1, kSum = 2, kNormalizedMax = 3 };

// bound_weight a, in [0, 1]: how much of a summary's range counts. With mid and half the middle and
// half the width of a block's keys in each dimension, a query head scores the block
//   q.mid + a * sum_d |q_d| * half_d  =  (1 + a)/2 * sum_d max(q_d * min_d, q_d * max_d)
//                                      + (1 - a)/2 * sum_d min(q_d * min_d, q_d * max_d).
// 1: the upper bound of q.k over the block (the published score). 0: the box's middle. The bound is
// reached only by a key that is extreme in every dimension at once, so that it favours blocks of
// widely spread keys.
inline constexpr double kDefaultBoundWeight = 1.0;

// What a working set keeps its key summaries as. kFloat8 is E4M3 (4 significant bits, greatest
// 448), half the memory and half the bytes of a score for BF16 keys: minima are rounded down and
// maxima up, so that the box still holds every key and a bound stays one. Keys beyond +-448 are
// taken for +-448: there the bound is none. The wider box costs selection some sharpness. head_dim
// must be a multiple of 16. Frames, the wire and daemons keep summaries in the keys' element type;
// they are rounded when they enter the working set.
enum class SummaryType : uint8_t { kAsKeys = 0, kFloat8 = 1 };

// kCapped: at most floor(fetch_ratio x K) blocks change per head, layer and step. kExact: the true
// top-K is resolved before attention; prediction only warms the working set.
enum class SelectionMode { kCapped = 0, kExact = 1 };

// A block that has not arrived when attention needs it: kWait waits for it (until the deadline),
// kSkip treats it as refused by the cap, so that the stale resident is attended.
enum class LatePolicy { kWait = 0, kSkip = 1 };

// A source that is gone: kFail reports the request's loss, so that the engine recomputes; kDegrade
// goes on with the residents and counts it.
enum class LossPolicy { kFail = 0, kDegrade = 1 };

}  // namespace oasiskv
