#include "common/fabric/ucx/one_sided.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/pause_point.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric::ucx {
namespace {

// Of one operation: large enough that its cost does not show, small enough that batches take turns.
constexpr uint64_t kMaxOperationBytes = uint64_t{256} << 10;
// In flight at a time, whatever their size.
constexpr size_t kMaxOperations = 256;
// The smallest window that can be worked with.
constexpr uint64_t kMinRingBytes = uint64_t{64} << 10;

absl::Status BadKeys() {
  return MakeError(ErrorCode::kPeerLost, "the daemon sent keys that cannot be read");
}

}  // namespace

// Thread contract: as Operation. Holds its stretch of the ring.
class OneSided::BatchOperation : public Operation {
 public:
  explicit BatchOperation(OneSided& owner) : owner_(owner) { owner_.operations_.insert(this); }
  void OnDone(absl::string_view error) final {
    owner_.operations_.erase(this);
    End(error);
  }
  virtual void DropPasses() {}

 protected:
  virtual void End(absl::string_view error) = 0;
  OneSided& owner_;
};

class OneSided::DataOperation : public BatchOperation {
 public:
  DataOperation(OneSided& owner, std::shared_ptr<Batch> batch, BatchCursor from, uint64_t offset,
                uint64_t bytes, Pass pass)
      : BatchOperation(owner),
        batch_(std::move(batch)),
        from_(from),
        offset_(offset),
        bytes_(bytes),
        pass_(std::move(pass)) {
    ++batch_->open_requests;
  }
  void DropPasses() override { pass_.reset(); }

 private:
  void End(absl::string_view error) override {
    const bool read = batch_->access == Access::kRead;
    --batch_->open_requests;
    if (error.empty() && read) {
      OASISKV_PAUSE_POINT("ucx.client.before_copy");
      if (batch_->CopyIn(from_, 0, {owner_.at(offset_), bytes_})) {
        owner_.ledger_->Count(&ConnectionStats::bytes_read, bytes_);
        owner_.ledger_->Count(&ConnectionStats::bytes_bounced, bytes_);
      }
    }
    owner_.ring_.Give(offset_);
    if (!error.empty()) return owner_.Failed(read ? "read" : "write", error);
    if (!read) {
      if (!batch_->ended()) owner_.ledger_->Count(&ConnectionStats::bytes_written, bytes_);
      if (pass_ != nullptr && !owner_.dropped_) owner_.unflushed_.push_back(std::move(pass_));
    }
    if (batch_->all_asked() && batch_->open_requests == 0) owner_.DataDone(batch_);
  }

  const std::shared_ptr<Batch> batch_;
  const BatchCursor from_;
  const uint64_t offset_;
  const uint64_t bytes_;
  Pass pass_;
};

class OneSided::FlushOperation : public BatchOperation {
 public:
  explicit FlushOperation(OneSided& owner)
      : BatchOperation(owner),
        passes_(std::exchange(owner.unflushed_, {})),
        batches_(std::exchange(owner.flush_due_, {})) {
    owner.flushing_ = true;
  }
  void DropPasses() override { passes_.clear(); }

 private:
  void End(absl::string_view error) override {
    owner_.flushing_ = false;
    if (!error.empty()) return owner_.Failed("flush", error);
    for (auto& batch : batches_) owner_.word_due_.push_back(std::move(batch));
  }

  std::vector<Pass> passes_;
  std::vector<std::shared_ptr<Batch>> batches_;
};

class OneSided::WordOperation : public BatchOperation {
 public:
  WordOperation(OneSided& owner, std::shared_ptr<Batch> batch, uint64_t offset)
      : BatchOperation(owner), batch_(std::move(batch)), offset_(offset) {}

 private:
  void End(absl::string_view error) override {
    uint64_t word = 0;
    std::memcpy(&word, owner_.at(offset_), sizeof(word));
    owner_.ring_.Give(offset_);
    if (!error.empty()) return owner_.Failed("read of a grant word", error);
    owner_.ledger_->Count(&ConnectionStats::grant_checks);
    batch_->End(CheckGrantWord(word, batch_->grant->epoch));
  }

  const std::shared_ptr<Batch> batch_;
  const uint64_t offset_;
};

absl::StatusOr<std::unique_ptr<OneSided>> OneSided::Create(
    Worker& worker, ucp_ep* endpoint, const Keys& keys, std::span<const std::byte> payload,
    uint64_t window_bytes, std::shared_ptr<Ledger> ledger,
    std::function<void(const absl::Status&)> lose) {
  std::unique_ptr<OneSided> out(new OneSided(
      worker, endpoint, std::max(window_bytes, kMinRingBytes), std::move(ledger), std::move(lose)));
  OASISKV_RETURN_IF_ERROR(out->MakeRing());
  OASISKV_RETURN_IF_ERROR(out->TakeKeys(keys, payload));
  return out;
}

// What UCX did not give back even when the endpoint and the worker were closed.
OneSided::~OneSided() {
  for (BatchOperation* operation : operations_) delete operation;
}

absl::Status OneSided::MakeRing() {
  OASISKV_ASSIGN_OR_RETURN(const UniqueFd file,
                           CreateMemfd("oasiskv ucx ring", ring_.size(), PageKind::kNormal));
  OASISKV_ASSIGN_OR_RETURN(memory_, Mapping::Map(file.get(), ring_.size(), Protection::kReadWrite));
  OASISKV_ASSIGN_OR_RETURN(registered_, worker_.Register({memory_.data(), memory_.size()},
                                                         "a connection's own buffers"));
  return absl::OkStatus();
}

absl::Status OneSided::TakeKeys(const Keys& keys, std::span<const std::byte> payload) {
  if (keys.regions < 1 || keys.regions > kMaxRegions) return BadKeys();
  for (uint32_t i = 0; i < keys.regions; ++i) {
    KeyHead head;
    if (payload.size() < sizeof(head)) return BadKeys();
    std::memcpy(&head, payload.data(), sizeof(head));
    payload = payload.subspan(sizeof(head));
    if (head.key_bytes == 0 || head.key_bytes > payload.size()) return BadKeys();
    OASISKV_ASSIGN_OR_RETURN(RemoteKey key,
                             RemoteKey::Unpack(endpoint_, payload.first(head.key_bytes)));
    payload = payload.subspan(head.key_bytes);
    (i + 1 < keys.regions ? arenas_ : words_).push_back({head.address, head.bytes, std::move(key)});
  }
  return payload.empty() ? absl::OkStatus() : BadKeys();
}

absl::Status OneSided::CheckPlaces(const Batch& batch) const {
  const uint64_t word_end = (uint64_t{batch.grant->word_slot.value()} + 1) * sizeof(uint64_t);
  if (word_end > words_[0].bytes) {
    return MakeError(
        ErrorCode::kOutOfRange,
        absl::StrCat("the grant's word ", batch.grant->word_slot.value(),
                     " is not among the daemon's ", words_[0].bytes / sizeof(uint64_t)));
  }
  for (const Stretch& stretch : batch.stretches()) {
    const size_t arena = stretch.address.arena.value();
    const uint64_t bytes = arena < arenas_.size() ? arenas_[arena].bytes : 0;
    if (stretch.address.offset > bytes || stretch.bytes > bytes - stretch.address.offset) {
      return MakeError(
          ErrorCode::kOutOfRange,
          absl::StrCat("the grant places ", stretch.bytes, " bytes at offset ",
                       stretch.address.offset, " of arena ", arena, ", which has ", bytes));
    }
  }
  return absl::OkStatus();
}

bool OneSided::Issue(const std::shared_ptr<Batch>& batch) {
  if (dropped_ || operations_.size() >= kMaxOperations) return false;
  const BatchCursor from = batch->next;
  const Stretch& stretch = batch->stretches()[from.stretch];
  const uint64_t bytes =
      std::min({stretch.bytes - from.offset, kMaxOperationBytes, ring_.size() / 4});
  const auto offset = ring_.Take(bytes);
  if (!offset.has_value()) return false;
  Pass pass;
  if (batch->access == Access::kWrite) {
    pass = batch->CopyOut(from, bytes, at(*offset));
    if (pass == nullptr) {
      ring_.Give(*offset);
      return true;  // it ended meanwhile
    }
  }
  batch->next.offset += bytes;
  if (batch->next.offset == stretch.bytes) batch->next = {from.stretch + 1, 0};
  ledger_->Count(&ConnectionStats::requests);
  const Region& arena = arenas_[stretch.address.arena.value()];
  const RemotePlace place{arena.address + stretch.address.offset + from.offset, &arena.key};
  auto operation =
      std::make_unique<DataOperation>(*this, batch, from, *offset, bytes, std::move(pass));
  const std::span<std::byte> local(at(*offset), bytes);
  if (batch->access == Access::kRead) {
    Get(endpoint_, local, registered_, place, std::move(operation));
  } else {
    Put(endpoint_, local, registered_, place, std::move(operation));
  }
  return true;
}

void OneSided::DataDone(const std::shared_ptr<Batch>& batch) {
  if (dropped_ || batch->ended()) return;
  (batch->access == Access::kRead ? word_due_ : flush_due_).push_back(batch);
}

bool OneSided::Advance() {
  if (dropped_) return false;
  bool active = false;
  // One at a time, for all that UCX has taken: also for writes whose batches ended early, whose
  // fences wait for what is in flight.
  if (!flushing_ && (!unflushed_.empty() || !flush_due_.empty())) {
    Flush(endpoint_, std::make_unique<FlushOperation>(*this));
    active = true;
  }
  while (!dropped_ && !word_due_.empty()) {
    const std::shared_ptr<Batch> batch = word_due_.back();
    if (!batch->ended() && !ReadWord(batch)) break;
    std::erase(word_due_, batch);
    active = true;
  }
  return active;
}

bool OneSided::ReadWord(const std::shared_ptr<Batch>& batch) {
  const auto offset = ring_.Take(sizeof(uint64_t));
  if (!offset.has_value()) return false;
  // Rule 2 of the design: the data is here (or, written, there) before the word is asked for.
  OASISKV_PAUSE_POINT("ucx.before_grant_word");
  const uint64_t address =
      words_[0].address + uint64_t{batch->grant->word_slot.value()} * sizeof(uint64_t);
  Get(endpoint_, {at(*offset), sizeof(uint64_t)}, registered_, {address, &words_[0].key},
      std::make_unique<WordOperation>(*this, batch, *offset));
  return true;
}

void OneSided::Drop() {
  dropped_ = true;
  flush_due_.clear();
  word_due_.clear();
  unflushed_.clear();
  for (BatchOperation* operation : operations_) operation->DropPasses();
}

void OneSided::Failed(absl::string_view what, absl::string_view error) {
  if (dropped_) return;
  lose_(MakeError(ErrorCode::kPeerLost, absl::StrCat("a one-sided ", what, " failed: ", error)));
}

}  // namespace oasiskv::fabric::ucx
