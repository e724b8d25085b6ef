// The client's half: one thread owns the worker and the endpoint; callers hand batches over and
// wait.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "common/fabric/ucx/batch.h"
#include "common/fabric/ucx/ucx.h"
#include "common/fabric/ucx/worker.h"
#include "common/mutex.h"

namespace oasiskv::fabric::ucx {

// Thread contract: as Connection. What stands under "progress thread" belongs to that thread.
//
// Cuts batches into requests that share one window, and puts the answers where they belong.
class UcxConnection final : public Connection, private ArrivalHandler {
 public:
  static absl::StatusOr<std::unique_ptr<Connection>> Connect(const UcxConnectOptions& options);
  ~UcxConnection() override;

  std::unique_ptr<Transfer> Read(std::shared_ptr<const GrantView> grant,
                                 std::span<const ReadPiece> pieces,
                                 MonotonicTime deadline) override {
    return Start(Access::kRead, std::move(grant), pieces, deadline);
  }
  std::unique_ptr<Transfer> Write(std::shared_ptr<const GrantView> grant,
                                  std::span<const WritePiece> pieces,
                                  MonotonicTime deadline) override {
    return Start(Access::kWrite, std::move(grant), pieces, deadline);
  }
  // The daemon checks every write when it arrives, so it needs no word of this.
  void FenceWriter(GrantId grant) override { ledger_->gate().Close(grant); }
  absl::Status Health() override {
    MutexLock lock(mutex_);
    return lost_;
  }
  absl::string_view fabric() const override { return "ucx"; }
  ConnectionId connection_id() const override { return ConnectionId(0); }
  std::string Describe() const override {
    return absl::StrCat("ucx ", options_.address, ", ", lane_.ToString());
  }
  ConnectionStats Stats() const override { return ledger_->Stats(); }

 private:
  class WriteMessage;
  class PlainMessage;

  struct OpenRequest {
    std::shared_ptr<Batch> batch;
    BatchCursor from;
    uint64_t bytes = 0;
    uint64_t arrived = 0;  // reads only
    bool answered = false;
    uint64_t word = 0;
  };
  using Requests = absl::flat_hash_map<uint64_t, OpenRequest>;

  explicit UcxConnection(const UcxConnectOptions& options)
      : options_(options), ledger_(std::make_shared<Ledger>()) {}

  absl::Status Handshake();
  template <typename Piece>
  std::unique_ptr<Transfer> Start(Access access, std::shared_ptr<const GrantView> grant,
                                  std::span<const Piece> pieces, MonotonicTime deadline);
  absl::Status Submit(const std::shared_ptr<Batch>& batch);

  // --- progress thread ---
  void Run();
  bool TakeSubmitted();
  bool Issue();
  bool IssueOne(const std::shared_ptr<Batch>& batch);
  bool Full() const;
  std::vector<RemoteRange> NextRanges(Batch& batch, uint64_t max_bytes, size_t max_ranges,
                                      uint64_t& bytes) const;
  void AddRead(const OpenRequest& request, uint64_t id, const std::vector<RemoteRange>& ranges);
  void SendReads();
  bool SendWrite(const OpenRequest& request, uint64_t id, const std::vector<RemoteRange>& ranges);
  void OnArrival(const Arrival& arrival) override;
  void OnHelloReply(const Arrival& arrival);
  void OnData(const Arrival& arrival);
  void TakeData(const Data& data, std::span<const std::byte> payload);
  void OnTrailer(const Arrival& arrival);
  void Finish(Requests::iterator it);
  void Lose(const absl::Status& why);
  void Sweep(MonotonicTime now);
  MonotonicTime WakeAt(MonotonicTime now) const;
  void CloseEndpoint();

  void OnError(absl::string_view why);

  const UcxConnectOptions options_;
  const std::shared_ptr<Ledger> ledger_;
  std::unique_ptr<Worker> worker_;
  std::atomic<bool> stop_{false};
  std::thread thread_;

  Lane lane_;  // set by the progress thread before it is greeted, constant from then on

  mutable Mutex mutex_;
  CondVar greeted_changed_;
  bool greeted_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Batch>> submitted_ ABSL_GUARDED_BY(mutex_);

  // --- progress thread ---
  ucp_ep* endpoint_ = nullptr;
  bool failed_ = false;                        // lost_ is set
  std::deque<std::shared_ptr<Batch>> asking_;  // with bytes not asked for yet, served in turn
  std::vector<std::shared_ptr<Batch>> live_;   // not known to have ended, for their deadlines
  std::vector<std::shared_ptr<Batch>> taken_;
  Requests requests_;
  std::unique_ptr<Message> reads_;  // requests that go out together, within Issue
  uint64_t next_request_ = 1;
  uint64_t bytes_in_flight_ = 0;
  size_t writes_posted_ = 0;
  size_t sends_in_flight_ = 0;
  MonotonicTime next_deadline_ = MonotonicTime::max();
};

// What needs no memory but its own.
class UcxConnection::PlainMessage : public Message {
 public:
  PlainMessage(UcxConnection& connection, MessageId message_id, const void* head, size_t bytes)
      : Message(message_id, head, bytes), connection_(connection) {
    ++connection_.sends_in_flight_;
  }
  void OnSent(bool ok) override { --connection_.sends_in_flight_; }

 protected:
  UcxConnection& connection_;
};

}  // namespace oasiskv::fabric::ucx
