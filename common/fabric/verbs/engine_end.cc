// The engine's half that learns what became of work requests, and ends batches.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/fabric/verbs/engine.h"
#include "common/fabric/verbs/queue_pair.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric::verbs {
namespace {

// A broken queue pair flushes at once. One that has not after so long is destroyed, after which the
// device touches nothing for it either.
constexpr Duration kFlushPatience = std::chrono::seconds(1);

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

void Engine::OnCompletion(const ibv_wc& completion, MonotonicTime now) {
  const uint64_t place = (completion.wr_id & 0xffff'ffff) >> kPlaceShift;
  if (place >= chunks_.size()) return;
  Chunk& chunk = chunks_[place];
  const uint64_t index = completion.wr_id - chunk.id;
  if (index >= chunk.count) return;  // of an earlier use of the place
  if (completion.status == IBV_WC_SUCCESS) {
    last_heard_ = now;
  } else {
    chunk.failed = true;
    // Of a queue pair that we broke ourselves, this is just what came back.
    if (!pairs_[chunk.pair].broken) Lose(PairError(completion.status));
  }
  // After an error each request reports, signalled or not; the last one's turn comes last.
  if (index + 1 == chunk.count) Retire(chunk);
}

void Engine::Retire(Chunk& chunk) {
  pairs_[chunk.pair].outstanding -= chunk.count;
  outstanding_ -= chunk.count;
  const std::shared_ptr<Batch> batch = std::move(chunk.batch);
  switch (chunk.kind) {
    case ChunkKind::kData:
      RetireData(chunk, batch);
      break;
    case ChunkKind::kWord:
      RetireWord(chunk, batch);
      break;
    case ChunkKind::kKeepalive:
      keepalive_out_ = false;
      break;
  }
  GiveChunk(chunk);
}

void Engine::RetireData(Chunk& chunk, const std::shared_ptr<Batch>& batch) {
  bytes_in_flight_ -= chunk.bytes;
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
      (reads ? stats_.bytes_read : stats_.bytes_written) += chunk.bytes;
      stats_.bytes_bounced += chunk.bounced;
      stats_.bytes_direct += chunk.bytes - chunk.bounced;
    }
  }
  if (batch->ending.has_value() && batch->direct_chunks == 0) Finish(*batch, *batch->ending);
  LeaveGate(*batch);
  CheckIfComplete(batch);
}

// What another batch's end took down with a queue pair goes out again on the others. Reads only: a
// connection that writes is lost with the first queue pair.
void Engine::Requeue(const Chunk& chunk, const std::shared_ptr<Batch>& batch) {
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
  Enqueue(batch);
}

void Engine::RetireWord(Chunk& chunk, const std::shared_ptr<Batch>& batch) {
  --batch->word_reads;
  if (batch->Over()) return;
  if (chunk.failed) {
    to_check_.push_back(batch);
    return;
  }
  uint64_t word = 0;
  std::memcpy(&word, chunk.stretches[0].local, sizeof(word));
  ++stats_.grant_checks;
  const absl::Status status = CheckGrantWord(word, batch->grant->epoch);
  if (!status.ok() || batch->word_reads == 0) Finish(*batch, status);
  LeaveGate(*batch);
}

void Engine::CheckIfComplete(const std::shared_ptr<Batch>& batch) {
  if (batch->Over() || !batch->AllPosted() || batch->chunks > 0) return;
  if (!std::exchange(batch->checking, true)) to_check_.push_back(batch);
}

void Engine::EndEarly(const std::shared_ptr<Batch>& batch, const absl::Status& why,
                      MonotonicTime now) {
  if (batch->Over()) return;
  batch->ending = why;
  batch->parcels.clear();
  batch->changed.NotifyAll();  // whoever waits for room to add to it
  Duration patience = options_.drain_patience;
  if (batch->deadline <= now)
    patience = std::min(patience, (batch->deadline - batch->started) / 10);
  batch->patience_ends = now + patience;
  SweepBy(batch->patience_ends);
  if (batch->direct_chunks == 0) Finish(*batch, why);
  LeaveGate(*batch);
}

void Engine::Finish(Batch& batch, const absl::Status& outcome) {
  if (batch.outcome.has_value()) return;
  batch.outcome = outcome;
  batch.times.wire = Clock::Real().Now() - batch.posted;
  switch (ErrorCodeOf(outcome)) {
    case ErrorCode::kUnspecified:
      break;
    case ErrorCode::kStale:
      ++stats_.stale;
      break;
    case ErrorCode::kLeaseExpired:
      ++stats_.expired;
      break;
    case ErrorCode::kDeadlineExceeded:
      ++stats_.deadline;
      break;
    case ErrorCode::kCancelled:
      ++stats_.cancelled;
      break;
    default:
      ++stats_.failed;
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
void Engine::LeaveGate(Batch& batch) {
  if (!batch.counted_as_write || !batch.outcome.has_value() || batch.chunks > 0) return;
  batch.counted_as_write = false;
  gate_.Leave(batch.grant->id);
}

void Engine::BreakPair(uint32_t pair, MonotonicTime now) {
  Pair& broken = pairs_[pair];
  if (std::exchange(broken.broken, true)) return;
  broken.broken_at = now;
  SweepBy(now + kFlushPatience);
  if (options_.access == Access::kWrite && broken.outstanding > 0) writes_adrift_ = true;
  BreakQueuePair(broken.handle.get());
}

void Engine::Lose(const absl::Status& why) {
  if (!lost_.ok()) return;
  lost_ = why;
  const MonotonicTime now = Clock::Real().Now();
  for (uint32_t i = 0; i < pairs_.size(); ++i) BreakPair(i, now);
  // Ending a batch takes it off the list.
  for (const auto& batch : std::vector(live_)) EndEarly(batch, why, now);
  for (auto& queue : queues_) queue.clear();
  to_check_.clear();
}

void Engine::SweepBatches(MonotonicTime now) {
  bool broke = false;
  for (const auto& batch : std::vector(live_)) {  // ending a batch takes it off the list
    if (!batch->Over() && batch->deadline <= now) {
      EndEarly(batch, MakeError(ErrorCode::kDeadlineExceeded, "the batch's deadline passed"), now);
    }
    if (batch->outcome.has_value()) continue;
    if (!batch->ending.has_value()) {
      SweepBy(batch->deadline);
    } else if (batch->patience_ends > now) {
      SweepBy(batch->patience_ends);
    } else {
      for (const Chunk& chunk : chunks_) {
        if (chunk.batch != batch || !chunk.direct || pairs_[chunk.pair].broken) continue;
        BreakPair(chunk.pair, now);
        broke = true;
      }
    }
  }
  if (!broke) return;
  const bool none_left =
      std::all_of(pairs_.begin(), pairs_.end(), [](const Pair& p) { return p.broken; });
  if (none_left || options_.access == Access::kWrite) {
    Lose(MakeError(ErrorCode::kPeerLost,
                   "a batch that ended early had work on the wire that did not come back, and was "
                   "rid of it by taking "
                   "its queue pairs down; connect again"));
  }
}

void Engine::SweepPairs(MonotonicTime now) {
  for (uint32_t i = 0; i < pairs_.size(); ++i) {
    Pair& pair = pairs_[i];
    if (!pair.broken || pair.outstanding == 0) continue;
    if (now < pair.broken_at + kFlushPatience) {
      SweepBy(pair.broken_at + kFlushPatience);
      continue;
    }
    pair.handle.reset();
    for (Chunk& chunk : chunks_) {
      if (chunk.count == 0 || chunk.pair != i) continue;
      chunk.failed = true;
      Retire(chunk);
    }
  }
}

void Engine::Sweep(MonotonicTime now) {
  next_sweep_ = MonotonicTime::max();
  SweepBatches(now);
  SweepPairs(now);
  if (!lost_.ok() || outstanding_ > 0) return;
  if (now < last_heard_ + options_.keepalive) return;
  const std::optional<uint32_t> pair = FreestPair(depth_);
  if (pair.has_value()) {
    keepalive_out_ = PostWordRead(ChunkKind::kKeepalive, nullptr, WordSlot(0), *pair);
  }
}

}  // namespace oasiskv::fabric::verbs
