// What a user chooses about selection; shared by both sides.
#pragma once

namespace oasiskv {

// How the query heads of one GQA group are combined into one score per block of their KV head.
enum class GroupCombine { kMax = 0, kMean = 1, kSum = 2 };

// kCapped: at most floor(fetch_ratio x K) blocks change per head, layer and step (mechanism.md
// section 2). kExact: the true top-K is resolved before attention; prediction only warms the
// working set.
enum class SelectionMode { kCapped = 0, kExact = 1 };

// A block that has not arrived when attention needs it: kWait waits for it (until the deadline),
// kSkip treats it as refused by the cap, so that the stale resident is attended.
enum class LatePolicy { kWait = 0, kSkip = 1 };

// A source that is gone: kFail reports the request's loss, so that the engine recomputes; kDegrade
// goes on with the residents and counts it.
enum class LossPolicy { kFail = 0, kDegrade = 1 };

}  // namespace oasiskv
