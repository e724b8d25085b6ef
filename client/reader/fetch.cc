#include "client/reader/fetch.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/crc32c.h"
#include "common/pause_point.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::client {

ReadRight::~ReadRight() {
  if (!released.load()) core->keeper().ReleaseLater(session, grant);
}

absl::Status ReadRight::Check() const {
  if (released.load(std::memory_order_acquire)) {
    return MakeError(ErrorCode::kStale, "this reader was released; attach again");
  }
  OASISKV_RETURN_IF_ERROR(session->Status());
  return grant->Check(Clock::Real().Now());
}

// Makes the calling thread the only one that may touch the state; waits for a Release that holds it.
class FetchState::Owned {
 public:
  explicit Owned(FetchState& state) : state_(state) {
    while (state_.owned_.exchange(true, std::memory_order_acquire)) {
      state_.owned_.wait(true, std::memory_order_relaxed);
    }
  }
  ~Owned() {
    state_.owned_.store(false, std::memory_order_release);
    state_.owned_.notify_all();
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;

 private:
  FetchState& state_;
};

FetchState::FetchState(std::shared_ptr<ReadRight> right, FetchPlan plan, MonotonicTime deadline)
    : right_(std::move(right)), plan_(std::move(plan)) {
  deadline_ = CutByLease(deadline, *right_->grant);
  if (!plan_.pieces.empty()) {
    transfer_ = right_->session->reader().Read(right_->view, plan_.pieces, deadline_.at);
    plan_.pieces = {};  // a batch may have 100,000; the fabric needs them no longer
  }
}

FetchState::FetchState(std::shared_ptr<ReadRight> right, const absl::Status& error)
    : right_(std::move(right)) {
  Finish(error);
}

FetchState::~FetchState() { transfer_.reset(); }

bool FetchState::Done() {
  Owned owned(*this);
  return finished_ || transfer_ == nullptr || transfer_->Done();
}

absl::Status FetchState::Wait() {
  Owned owned(*this);
  if (finished_) return result_;
  OASISKV_PAUSE_POINT("client.fetch.posted");
  const absl::Status ended = transfer_ == nullptr ? absl::OkStatus() : transfer_->Wait();
  OASISKV_PAUSE_POINT("client.fetch.arrived");
  Finish(ended);
  return result_;
}

void FetchState::Cancel() {
  Owned owned(*this);
  if (finished_) return;
  if (transfer_ != nullptr) transfer_->Cancel();
  Finish(transfer_ == nullptr ? absl::OkStatus() : transfer_->Wait());
}

void FetchState::CancelFromRelease() {
  if (owned_.exchange(true, std::memory_order_acquire)) return;
  if (!finished_) {
    if (transfer_ != nullptr) transfer_->Cancel();
    Finish(MakeError(ErrorCode::kStale, "the reader was released while the batch was in flight"));
  }
  owned_.store(false, std::memory_order_release);
  owned_.notify_all();
}

void FetchState::Finish(const absl::Status& ended) {
  absl::Status status = ExplainEnd(ended, deadline_, *right_->grant, *right_->session);
  // The data are there and the grant word was right after them. The lease is looked at once more:
  // nothing that arrived after its end counts, even when the daemon has not yet revoked the grant.
  if (status.ok()) {
    if (right_->released.load(std::memory_order_acquire)) {
      status =
          MakeError(ErrorCode::kStale, "the reader was released while the batch was in flight");
    } else {
      status = right_->grant->Check(Clock::Real().Now());
    }
  }
  if (status.ok()) status = VerifyAndCopy();
  if (status.ok() && transfer_ != nullptr) right_->core->outcomes().Time(transfer_->Times());
  right_->core->outcomes().Count(status);
  result_ = std::move(status);
  finished_ = true;
  transfer_.reset();
  plan_ = {};
}

absl::Status FetchState::VerifyAndCopy() {
  absl::Status first_bad;
  Outcomes& outcomes = right_->core->outcomes();
  for (const EntryCheck& check : plan_.checks) {
    const uint32_t found = Crc32c(std::span<const std::byte>(check.at, plan_.entry_bytes));
    outcomes.checksums_verified.fetch_add(1, std::memory_order_relaxed);
    if (found == check.crc) continue;
    outcomes.checksum_failures.fetch_add(1, std::memory_order_relaxed);
    std::memset(check.at, 0, plan_.entry_bytes);
    if (!first_bad.ok()) continue;
    first_bad = MakeError(
        ErrorCode::kChecksumMismatch,
        absl::StrFormat("item %d (block %d, layer %d, head %d): CRC32C is %08x, the writer's was "
                        "%08x; the bytes were thrown away. Report this",
                        check.index, check.block, check.layer, check.head, found, check.crc));
  }
  OASISKV_RETURN_IF_ERROR(first_bad);
  for (const EntryCopy& copy : plan_.copies) std::memcpy(copy.to, copy.from, plan_.entry_bytes);
  return absl::OkStatus();
}

}  // namespace oasiskv::client
