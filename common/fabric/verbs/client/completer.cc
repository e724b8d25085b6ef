#include "common/fabric/verbs/client/completer.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/fabric/verbs/queue_pair.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric::verbs {
namespace {

absl::Status PairError(ibv_wc_status status) {
  const std::string text = ::ibv_wc_status_str(status);
  switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return MakeError(ErrorCode::kPeerLost,
                       absl::StrCat("the daemon does not answer over verbs any more: ", text));
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_OP_ERR:
      return MakeError(
          ErrorCode::kPeerLost,
          absl::StrCat(
              "the daemon's device refused a work request (this client's connection or keys "
              "are not valid there any more): ",
              text));
    default:
      return MakeError(ErrorCode::kPeerLost, absl::StrCat("the verbs connection failed: ", text));
  }
}

}  // namespace

bool Completer::Begin(const std::shared_ptr<Batch>& batch) {
  if (!traffic_.lost.ok()) {
    Finish(*batch, traffic_.lost);
    return false;
  }
  if (batch->access == Access::kWrite) {
    if (!gate_.Enter(batch->grant->id)) {
      Finish(*batch,
             MakeError(ErrorCode::kStale, "this client has fenced the grant: it writes no more"));
      return false;
    }
    batch->counted_as_write = true;
  }
  batch->live_at = live_.size();
  live_.push_back(batch);
  alarm_.By(batch->deadline);
  return true;
}

void Completer::OnCompletion(const ibv_wc& completion, MonotonicTime now) {
  const uint64_t place = (completion.wr_id & 0xffff'ffff) >> kPlaceShift;
  if (place >= traffic_.chunks.size()) return;
  Chunk& chunk = traffic_.chunks[place];
  const uint64_t index = completion.wr_id - chunk.id;
  if (index >= chunk.count) return;  // of an earlier use of the place
  if (completion.status == IBV_WC_SUCCESS) {
    traffic_.last_heard = now;
  } else {
    chunk.failed = true;
    // Of a queue pair that we broke ourselves, this is just what came back.
    if (!traffic_.pairs[chunk.pair].broken) Lose(PairError(completion.status));
  }
  // After an error each request reports, signalled or not; the last one's turn comes last.
  if (index + 1 == chunk.count) Retire(chunk);
}

void Completer::Retire(Chunk& chunk) {
  traffic_.pairs[chunk.pair].outstanding -= chunk.count;
  traffic_.outstanding -= chunk.count;
  const std::shared_ptr<Batch> batch = std::move(chunk.batch);
  switch (chunk.kind) {
    case ChunkKind::kData:
      RetireData(chunk, batch);
      break;
    case ChunkKind::kWord:
      RetireWord(chunk, batch);
      break;
    case ChunkKind::kKeepalive:
      break;
  }
  traffic_.Give(chunk);
}

void Completer::RetireData(Chunk& chunk, const std::shared_ptr<Batch>& batch) {
  traffic_.bytes -= chunk.bytes;
  --batch->chunks;
  if (chunk.direct) --batch->direct_chunks;
  if (!batch->Over()) {
    const bool reads = batch->access == Access::kRead;
    if (chunk.failed) {
      Requeue(chunk, batch);
    } else {
      for (uint32_t i = 0; reads && chunk.bounced > 0 && i < chunk.count; ++i) {
        if ((chunk.bounced_requests >> i & 1) == 0) continue;
        std::memcpy(chunk.stretches[i].local, chunk.bounces[i], chunk.stretches[i].bytes);
      }
      (reads ? traffic_.stats.bytes_read : traffic_.stats.bytes_written) += chunk.bytes;
      traffic_.stats.bytes_bounced += chunk.bounced;
      traffic_.stats.bytes_direct += chunk.bytes - chunk.bounced;
    }
  }
  if (batch->ending.has_value() && batch->direct_chunks == 0) Finish(*batch, *batch->ending);
  LeaveGate(*batch);
  CheckIfComplete(batch);
}

// What was on a queue pair that another batch's end took down goes out again on the others. Reads
// only: a connection that writes is lost with its first queue pair.
void Completer::Requeue(const Chunk& chunk, const std::shared_ptr<Batch>& batch) {
  if (!batch->parcels.empty()) {
    std::vector<Stretch>& first = batch->parcels.front();
    first.erase(first.begin(), first.begin() + static_cast<std::ptrdiff_t>(batch->next));
    Stretch& begun = first.front();
    begun.remote += batch->next_offset;
    begun.local += batch->next_offset;
    begun.bytes -= batch->next_offset;
  }
  batch->next = 0;
  batch->next_offset = 0;
  std::vector<Stretch> again(chunk.stretches.begin(), chunk.stretches.begin() + chunk.count);
  batch->parcels.insert(batch->parcels.begin(), std::move(again));
  poster_.Enqueue(batch);
}

void Completer::RetireWord(Chunk& chunk, const std::shared_ptr<Batch>& batch) {
  --batch->word_reads;
  if (batch->Over()) return;
  if (chunk.failed) {
    traffic_.to_check.push_back(batch);
    return;
  }
  uint64_t word = 0;
  std::memcpy(&word, chunk.stretches[0].local, sizeof(word));
  ++traffic_.stats.grant_checks;
  const absl::Status status = CheckGrantWord(word, batch->grant->epoch);
  if (!status.ok() || batch->word_reads == 0) Finish(*batch, status);
  LeaveGate(*batch);
}

void Completer::CheckIfComplete(const std::shared_ptr<Batch>& batch) {
  if (batch->Over() || !batch->AllPosted() || batch->chunks > 0) return;
  if (!std::exchange(batch->checking, true)) traffic_.to_check.push_back(batch);
}

void Completer::EndEarly(const std::shared_ptr<Batch>& batch, const absl::Status& why,
                         MonotonicTime now) {
  if (batch->Over()) return;
  batch->ending = why;
  batch->parcels.clear();
  batch->changed.NotifyAll();  // whoever waits for room to add to it
  Duration patience = link_.options().drain_patience;
  if (batch->deadline <= now)
    patience = std::min(patience, (batch->deadline - batch->started) / 10);
  batch->patience_ends = now + patience;
  alarm_.By(batch->patience_ends);
  if (batch->direct_chunks == 0) Finish(*batch, why);
  LeaveGate(*batch);
}

void Completer::Finish(Batch& batch, const absl::Status& outcome) {
  if (batch.outcome.has_value()) return;
  batch.outcome = outcome;
  batch.times.wire = Clock::Real().Now() - batch.posted;
  switch (ErrorCodeOf(outcome)) {
    case ErrorCode::kUnspecified:
      break;
    case ErrorCode::kStale:
      ++traffic_.stats.stale;
      break;
    case ErrorCode::kLeaseExpired:
      ++traffic_.stats.expired;
      break;
    case ErrorCode::kDeadlineExceeded:
      ++traffic_.stats.deadline;
      break;
    case ErrorCode::kCancelled:
      ++traffic_.stats.cancelled;
      break;
    default:
      ++traffic_.stats.failed;
  }
  if (batch.live_at != kNotLive) {
    live_.back()->live_at = batch.live_at;
    live_[batch.live_at] = std::move(live_.back());
    live_.pop_back();
    batch.live_at = kNotLive;
  }
  batch.region.reset();  // whoever keeps the transfer keeps no memory registered
  batch.ended.store(true, std::memory_order_release);
  batch.changed.NotifyAll();
}

// A write is over for the fence once nothing of it can reach the daemon any more, which may be
// after its end.
void Completer::LeaveGate(Batch& batch) {
  if (!batch.counted_as_write || !batch.outcome.has_value() || batch.chunks > 0) return;
  batch.counted_as_write = false;
  gate_.Leave(batch.grant->id);
}

void Completer::BreakPair(uint32_t pair, MonotonicTime now) {
  Pair& broken = traffic_.pairs[pair];
  if (std::exchange(broken.broken, true)) return;
  broken.broken_at = now;
  alarm_.By(now + kFlushPatience);
  if (link_.options().access == Access::kWrite && broken.outstanding > 0) writes_lost_ = true;
  BreakQueuePair(broken.handle.get());
}

void Completer::Lose(const absl::Status& why) {
  if (!traffic_.lost.ok()) return;
  traffic_.lost = why;
  const MonotonicTime now = Clock::Real().Now();
  for (uint32_t i = 0; i < traffic_.pairs.size(); ++i) BreakPair(i, now);
  // Ending a batch takes it off the list.
  for (const auto& batch : std::vector(live_)) EndEarly(batch, why, now);
  poster_.Clear();
  traffic_.to_check.clear();
}

}  // namespace oasiskv::fabric::verbs
