#include "common/fabric/ucx/batch.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric::ucx {
namespace {

MonotonicTime Now() { return std::chrono::steady_clock::now(); }

}  // namespace

void Ledger::Count(uint64_t ConnectionStats::*counter, uint64_t by) {
  MutexLock lock(mutex_);
  stats_.*counter += by;
}

void Ledger::CountEnd(const absl::Status& outcome) {
  if (outcome.ok()) return;
  switch (ErrorCodeOf(outcome)) {
    case ErrorCode::kStale:
      return Count(&ConnectionStats::stale);
    case ErrorCode::kLeaseExpired:
      return Count(&ConnectionStats::expired);
    case ErrorCode::kDeadlineExceeded:
      return Count(&ConnectionStats::deadline);
    case ErrorCode::kCancelled:
      return Count(&ConnectionStats::cancelled);
    default:
      return Count(&ConnectionStats::failed);
  }
}

ConnectionStats Ledger::Stats() const {
  MutexLock lock(mutex_);
  return stats_;
}

Batch::Batch(Access batch_access, std::shared_ptr<const GrantView> batch_grant,
             MonotonicTime batch_deadline, std::shared_ptr<Ledger> ledger)
    : access(batch_access),
      grant(std::move(batch_grant)),
      deadline(batch_deadline),
      ledger_(std::move(ledger)),
      started_(Now()),
      prepared_at_(started_),
      posted_at_(started_) {}

template <typename Piece>
absl::Status Batch::Prepare(std::span<const Piece> pieces) {
  absl::Status status = CheckPieces(*grant, pieces);
  if (status.ok()) {
    RunIterator<Piece> runs(*grant, pieces, FrameSpan::kWithinFrame);
    Run<Piece> run;
    while (runs.Next(run)) {
      stretches_.push_back({run.block, run.offset, run.bytes, const_cast<std::byte*>(run.local)});
    }
  }
  MutexLock lock(mutex_);
  prepared_at_ = posted_at_ = Now();
  times_.prepare = prepared_at_ - started_;
  return status;
}

template absl::Status Batch::Prepare(std::span<const ReadPiece> pieces);
template absl::Status Batch::Prepare(std::span<const WritePiece> pieces);

bool Batch::EnterGate() {
  auto pass = std::make_unique<WriteGate::Pass>(ledger_->gate(), grant->id);
  if (!*pass) return false;
  MutexLock lock(mutex_);
  pass_ = std::move(pass);
  return true;
}

void Batch::End(const absl::Status& status) {
  std::unique_ptr<WriteGate::Pass> pass;
  {
    MutexLock lock(mutex_);
    if (outcome_.has_value()) return;
    outcome_ = status;
    times_.wire = Now() - posted_at_;
    // Before anybody can learn of the outcome, so that whoever has it finds it counted.
    ledger_->CountEnd(status);
    ended_.store(true, std::memory_order_release);
    pass = std::move(pass_);
  }
  pass.reset();  // a fence that waits for it finds it ended
  ended_changed_.NotifyAll();
}

absl::Status Batch::WaitEnded() {
  MonotonicTime until = deadline;
  {
    MutexLock lock(mutex_);
    while (!outcome_.has_value()) {
      // No timed wait for "never": the library's arithmetic with it would wrap.
      if (until == MonotonicTime::max()) {
        ended_changed_.Wait(mutex_);
      } else if (!ended_changed_.WaitUntil(mutex_, until) && Now() >= until) {
        break;
      }
    }
    if (outcome_.has_value()) return *outcome_;
  }
  // The progress thread ends batches too, but the owner's promise must hold even while that thread
  // is held up.
  End(MakeError(ErrorCode::kDeadlineExceeded, "the batch's deadline passed"));
  MutexLock lock(mutex_);
  return *outcome_;
}

TransferTimes Batch::Times() const {
  MutexLock lock(mutex_);
  return times_;
}

void Batch::MarkPosted() {
  MutexLock lock(mutex_);
  if (outcome_.has_value()) return;
  posted_at_ = Now();
  times_.post = posted_at_ - prepared_at_;
}

bool Batch::CopyIn(BatchCursor from, uint64_t position, std::span<const std::byte> data) {
  from.offset += position;
  while (from.offset >= stretches_[from.stretch].bytes) {
    from.offset -= stretches_[from.stretch++].bytes;
  }
  MutexLock lock(mutex_);
  if (outcome_.has_value()) return false;
  while (!data.empty()) {
    const Stretch& stretch = stretches_[from.stretch];
    const uint64_t bytes = std::min<uint64_t>(stretch.bytes - from.offset, data.size());
    std::memcpy(stretch.local + from.offset, data.data(), bytes);
    data = data.subspan(bytes);
    ++from.stretch;
    from.offset = 0;
  }
  return true;
}

bool Batch::CopyOut(BatchCursor from, uint64_t bytes, std::vector<std::byte>& out) {
  MutexLock lock(mutex_);
  if (outcome_.has_value()) return false;
  while (bytes > 0) {
    const Stretch& stretch = stretches_[from.stretch];
    const uint64_t part = std::min(stretch.bytes - from.offset, bytes);
    const std::byte* first = stretch.local + from.offset;
    out.insert(out.end(), first, first + part);
    bytes -= part;
    ++from.stretch;
    from.offset = 0;
  }
  return true;
}

}  // namespace oasiskv::fabric::ucx
