#include "common/fabric/verbs/client/sweeper.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "oasiskv/error.h"

namespace oasiskv::fabric::verbs {

MonotonicTime Sweeper::Next() const {
  if (!traffic_.lost.ok() || traffic_.outstanding > 0) return alarm_.due();
  return std::min(alarm_.due(), traffic_.last_heard + link_.options().keepalive);
}

void Sweeper::Sweep(MonotonicTime now) {
  alarm_.Clear();
  SweepBatches(now);
  SweepPairs(now);
  if (!traffic_.lost.ok() || traffic_.outstanding > 0) return;
  if (now < traffic_.last_heard + link_.options().keepalive) return;
  const absl::Status status = poster_.PostKeepalive();
  if (!status.ok()) completer_.Lose(status);
}

void Sweeper::SweepBatches(MonotonicTime now) {
  bool broke = false;
  for (const auto& batch :
       std::vector(completer_.live())) {  // ending a batch takes it off the list
    if (!batch->Over() && batch->deadline <= now) {
      completer_.EndEarly(
          batch, MakeError(ErrorCode::kDeadlineExceeded, "the batch's deadline passed"), now);
    }
    if (batch->outcome.has_value()) continue;
    if (!batch->ending.has_value()) {
      alarm_.By(batch->deadline);
    } else if (batch->patience_ends > now) {
      alarm_.By(batch->patience_ends);
    } else {
      for (const Chunk& chunk : traffic_.chunks) {
        if (chunk.batch != batch || !chunk.direct || traffic_.pairs[chunk.pair].broken) continue;
        completer_.BreakPair(chunk.pair, now);
        broke = true;
      }
    }
  }
  if (!broke) return;
  const bool none_left = std::all_of(traffic_.pairs.begin(), traffic_.pairs.end(),
                                     [](const Pair& p) { return p.broken; });
  if (none_left || link_.options().access == Access::kWrite) {
    completer_.Lose(
        MakeError(ErrorCode::kPeerLost,
                  "a batch that ended early had work on the wire that did not come back, so its "
                  "queue pairs were taken down; connect again"));
  }
}

void Sweeper::SweepPairs(MonotonicTime now) {
  for (uint32_t i = 0; i < traffic_.pairs.size(); ++i) {
    Pair& pair = traffic_.pairs[i];
    if (!pair.broken || pair.outstanding == 0) continue;
    if (now < pair.broken_at + kFlushPatience) {
      alarm_.By(pair.broken_at + kFlushPatience);
      continue;
    }
    pair.handle.reset();
    for (Chunk& chunk : traffic_.chunks) {
      if (chunk.count == 0 || chunk.pair != i) continue;
      chunk.failed = true;
      completer_.Retire(chunk);
    }
  }
}

}  // namespace oasiskv::fabric::verbs
