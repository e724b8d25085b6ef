// What a client's handles share: options, the current session, the lease keeper, counters.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/connection/buffer_registry.h"
#include "client/connection/lease_keeper.h"
#include "client/connection/session.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "oasiskv/buffer.h"
#include "oasiskv/client.h"

namespace oasiskv::client {

// How batches ended, counted where the final answer is known.
//
// Thread contract: safe for concurrent use.
struct Outcomes {
  std::atomic<uint64_t> stale{0}, expired{0}, deadline{0}, failed{0};
  std::atomic<uint64_t> checksums_verified{0}, checksum_failures{0};
  std::atomic<uint64_t> timed{0}, prepare_ns{0}, post_ns{0}, wire_ns{0};  // of batches that counted
  void Count(const absl::Status& status);
  void Time(const fabric::TransferTimes& times);
};

// Thread contract: safe for concurrent use.
//
// Held by the Client and by every handle; the keeper's thread ends with the last of them.
class Core {
 public:
  static absl::StatusOr<std::shared_ptr<Core>> Create(const ClientOptions& options);

  const ClientOptions& options() const { return options_; }
  LeaseKeeper& keeper() { return keeper_; }
  Outcomes& outcomes() { return outcomes_; }
  BufferRegistry& buffers() { return buffers_; }
  // What a call asks for where its caller named no lease.
  Duration LeaseOr(Duration asked) const { return asked > Duration(0) ? asked : options_.lease; }

  // A session that was alive just now; made anew when the last one is dead, trying with exponential
  // back-off and jitter until `deadline`. One caller builds, the others wait for it.
  absl::StatusOr<std::shared_ptr<Session>> CurrentSession(MonotonicTime deadline);
  // Runs `call` on the current session, and again on the next one when the daemon was lost or
  // restarted under it: a call that changes something has one token in all its repeats.
  absl::Status OnSession(MonotonicTime deadline,
                         const std::function<absl::Status(const std::shared_ptr<Session>&)>& call);

  // OK, or PEER_LOST with what is known.
  absl::Status Health() const;
  std::string Describe() const;
  std::string FabricName() const;
  ClientStats Stats() const;

 private:
  explicit Core(const ClientOptions& options);
  absl::StatusOr<std::shared_ptr<Session>> Build(MonotonicTime deadline);
  void Adopt(const std::shared_ptr<Session>& session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A dead daemon's mappings must not wait for the next call.
  void DropDeadSession();

  const ClientOptions options_;
  const std::shared_ptr<RetiredStats> retired_ = std::make_shared<RetiredStats>();
  Outcomes outcomes_;
  BufferRegistry buffers_;

  mutable Mutex mutex_;
  CondVar changed_;
  bool building_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<Session> current_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<Session>> sessions_ ABSL_GUARDED_BY(mutex_);  // that may still live
  uint64_t sessions_made_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string last_choice_ ABSL_GUARDED_BY(mutex_);
  std::string last_loss_ ABSL_GUARDED_BY(mutex_);

  LeaseKeeper keeper_;  // last: its thread calls DropDeadSession
};

// What Client::RegisterBuffer and Reader::RegisterBuffer give.
absl::StatusOr<RegisteredBuffer> RegisterBuffer(std::shared_ptr<Core> core,
                                                std::span<std::byte> memory);

// The lease's end is the earlier deadline of a batch; this says which of the two it was.
struct BatchDeadline {
  MonotonicTime at;
  bool cut_by_lease = false;
};
BatchDeadline CutByLease(MonotonicTime asked, const GrantState& grant);

// The error a user sees for a batch that the fabric ended with `status`: LEASE_EXPIRED where the
// lease's end cut it, STALE where the daemon restarted or knows the grant no longer, else `status`.
absl::Status ExplainEnd(const absl::Status& status, BatchDeadline deadline, const GrantState& grant,
                        const Session& session);

}  // namespace oasiskv::client

namespace oasiskv {

// What stands behind Client, for the files that define its calls by subject.
//
// Thread contract: safe for concurrent use.
class Client::Impl {
 public:
  explicit Impl(std::shared_ptr<client::Core> made) : core(std::move(made)) {}
  const std::shared_ptr<client::Core> core;
};

}  // namespace oasiskv
