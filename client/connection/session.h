// One life of one daemon, as a client is connected to it.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/connection/control.h"
#include "client/connection/fabric_choice.h"
#include "common/fabric/fabric.h"
#include "common/mutex.h"
#include "oasiskv/client.h"

namespace oasiskv::client {

// Sums over connections that are gone, so that a client's counters never fall.
//
// Thread contract: safe for concurrent use.
class RetiredStats {
 public:
  void Add(const fabric::ConnectionStats& stats);
  fabric::ConnectionStats Get() const;

 private:
  mutable Mutex mutex_;
  fabric::ConnectionStats sum_ ABSL_GUARDED_BY(mutex_);
};

void AddStats(const fabric::ConnectionStats& from, fabric::ConnectionStats* to);

// Thread contract: safe for concurrent use.
//
// Control channel, readers' data connection and (made at the first Open) the writers' data
// connection to one incarnation of a daemon. Every handle holds its session; the mappings of a dead
// daemon's pool go with the last of them. A session never comes back to life: once dead, it answers
// STALE where the daemon is known to have restarted, else PEER_LOST.
class Session {
 public:
  // Describes the daemon and connects a fabric, in one attempt within `timeout`. Errors: PEER_LOST,
  // STALE (it restarted in between), UNSUPPORTED, PERMISSION_DENIED, INVALID_ARGUMENT.
  static absl::StatusOr<std::shared_ptr<Session>> Connect(const ClientOptions& options,
                                                          Duration timeout,
                                                          std::shared_ptr<RetiredStats> retired);
  ~Session();

  ControlChannel& control() { return *control_; }
  const DaemonInfo& daemon() const { return daemon_; }
  fabric::Connection& reader() const { return *reader_; }
  // The connection that writes go through: one of its own where writers write to the memory
  // themselves; else the readers'.
  absl::StatusOr<fabric::Connection*> Writer();

  // OK, STALE (the daemon restarted) or PEER_LOST.
  absl::Status Status() const;
  // Looks again at the connections.
  bool alive() const { return Status().ok(); }
  // An RPC told of another incarnation.
  void MarkRestarted();
  bool restarted() const { return restarted_.load(std::memory_order_acquire); }
  void MarkLost(const std::string& why);

  // STALE when `grant` was given by another life of the daemon than this session's: gRPC reconnects
  // by itself, so an answer may come from the successor. Ids of one life share their high half; the
  // first one seen is vouched for by a Describe.
  absl::Status VerifyGrant(GrantId grant, Duration timeout);

  // Why this fabric, for people.
  const std::string& choice() const { return choice_; }
  std::string Describe() const;
  fabric::ConnectionStats Stats() const;

 private:
  Session(const ClientOptions& options, std::shared_ptr<RetiredStats> retired);

  const std::string address_;
  const std::shared_ptr<RetiredStats> retired_;
  const std::shared_ptr<ControlChannel> control_;
  // Constant after Connect.
  DaemonInfo daemon_;
  std::optional<FabricConnector> connector_;
  const fabric::Fabric* fabric_ = nullptr;
  std::shared_ptr<fabric::Connection> reader_;
  std::string choice_;

  std::atomic<bool> restarted_{false};
  std::atomic<bool> lost_{false};
  std::atomic<uint64_t> grant_high_half_{0};  // 0: none seen
  mutable Mutex mutex_;
  std::string lost_why_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<fabric::Connection> writer_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace oasiskv::client
