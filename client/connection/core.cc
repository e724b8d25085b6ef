#include "client/connection/core.h"

#include <algorithm>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/address.h"
#include "common/log.h"
#include "common/pause_point.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::client {
namespace {

constexpr Duration kFirstBackoff = std::chrono::milliseconds(20);
constexpr Duration kMaxBackoff = std::chrono::milliseconds(2000);

// Exponential, half of it random, so that many clients of a restarted daemon do not come back in
// step.
class Backoff {
 public:
  // Sleeps, at most until `deadline`.
  void Pause(MonotonicTime deadline) {
    thread_local std::minstd_rand random(std::random_device{}());
    std::uniform_real_distribution<double> share(0.5, 1.0);
    const auto pause = std::chrono::duration_cast<Duration>(next_ * share(random));
    next_ = std::min(next_ * 2, kMaxBackoff);
    std::this_thread::sleep_until(std::min(deadline, Clock::Real().Now() + pause));
  }

 private:
  Duration next_ = kFirstBackoff;
};

bool WorthRepeating(const absl::Status& status) {
  const ErrorCode code = ErrorCodeOf(status);
  return code == ErrorCode::kPeerLost || code == ErrorCode::kStale;
}

absl::Status CheckOptions(const ClientOptions& options) {
  if (auto address = ParseAddress(options.address, 0); !address.ok()) {
    return Annotate(address.status(), "ClientOptions.address");
  } else if (address->port == 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrCat("ClientOptions.address is \"", options.address,
                                  "\"; give the daemon's control port too: host:port"));
  }
  if (options.rpc_timeout <= Duration(0) || options.read_timeout <= Duration(0) ||
      options.lease < Duration(0)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "ClientOptions: rpc_timeout and read_timeout must be positive, lease not "
                     "negative");
  }
  if (options.fabric != "auto" && fabric::FindFabric(options.fabric) == nullptr) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrCat("ClientOptions.fabric is \"", options.fabric,
                                  "\"; there are auto, ", fabric::FabricNames()));
  }
  if (options.verbs_port > fabric::kMaxVerbsPort || options.verbs_gid_index < -1 ||
      options.verbs_gid_index > fabric::kMaxVerbsGidIndex ||
      options.verbs_peer_timeout < Duration(0)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrCat("ClientOptions: verbs_port ", options.verbs_port, " (0 to ",
                                  fabric::kMaxVerbsPort, "), verbs_gid_index ",
                                  options.verbs_gid_index, " (-1 to ", fabric::kMaxVerbsGidIndex,
                                  ") or verbs_peer_timeout (not negative) is out of "
                                  "its range"));
  }
  return absl::OkStatus();
}

}  // namespace

void Outcomes::Time(const fabric::TransferTimes& times) {
  timed.fetch_add(1, std::memory_order_relaxed);
  prepare_ns.fetch_add(static_cast<uint64_t>(times.prepare.count()), std::memory_order_relaxed);
  post_ns.fetch_add(static_cast<uint64_t>(times.post.count()), std::memory_order_relaxed);
  wire_ns.fetch_add(static_cast<uint64_t>(times.wire.count()), std::memory_order_relaxed);
}

void Outcomes::Count(const absl::Status& status) {
  if (status.ok()) return;
  switch (ErrorCodeOf(status)) {
    case ErrorCode::kStale:
      stale.fetch_add(1, std::memory_order_relaxed);
      break;
    case ErrorCode::kLeaseExpired:
      expired.fetch_add(1, std::memory_order_relaxed);
      break;
    case ErrorCode::kDeadlineExceeded:
      deadline.fetch_add(1, std::memory_order_relaxed);
      break;
    case ErrorCode::kCancelled:  // asked for, no failure
      break;
    default:
      failed.fetch_add(1, std::memory_order_relaxed);
  }
}

Core::Core(const ClientOptions& options)
    : options_(options), keeper_(options.rpc_timeout, [this] { DropDeadSession(); }) {}

absl::StatusOr<std::shared_ptr<Core>> Core::Create(const ClientOptions& options) {
  OASISKV_RETURN_IF_ERROR(CheckOptions(options));
  std::shared_ptr<Core> core(new Core(options));
  OASISKV_RETURN_IF_ERROR(core->CurrentSession(Clock::Real().Now() + options.rpc_timeout).status());
  return core;
}

absl::StatusOr<std::shared_ptr<Session>> Core::CurrentSession(MonotonicTime deadline) {
  std::shared_ptr<Session> dead;
  {
    MutexLock lock(mutex_);
    while (true) {
      if (current_ != nullptr && current_->alive()) return current_;
      if (!building_) break;
      if (!changed_.WaitUntil(mutex_, deadline) && building_) {
        return MakeError(ErrorCode::kPeerLost,
                         absl::StrCat("no connection to the daemon at ", options_.address,
                                      " in time: ", last_loss_));
      }
    }
    building_ = true;
    dead = std::move(current_);
    current_ = nullptr;
    if (dead != nullptr) last_loss_ = std::string(dead->Status().message());
  }
  dead.reset();  // may unmap a pool: not under the lock
  auto built = Build(deadline);
  if (built.ok()) buffers_.MoveTo(*built);
  MutexLock lock(mutex_);
  building_ = false;
  if (built.ok()) {
    Adopt(*built);
  } else {
    last_loss_ = std::string(built.status().message());
  }
  changed_.NotifyAll();
  return built;
}

absl::StatusOr<std::shared_ptr<Session>> Core::Build(MonotonicTime deadline) {
  Backoff backoff;
  while (true) {
    const Duration left = std::max(deadline - Clock::Real().Now(), Duration(Millis(1)));
    auto session = Session::Connect(options_, left, retired_);
    if (session.ok()) return session;
    const ErrorCode code = ErrorCodeOf(session.status());
    const bool timed_out = code == ErrorCode::kDeadlineExceeded;
    if (!timed_out && !WorthRepeating(session.status())) return session.status();
    backoff.Pause(deadline);
    if (Clock::Real().Now() >= deadline) {
      return MakeError(ErrorCode::kPeerLost,
                       absl::StrCat("connecting: ", session.status().message()));
    }
  }
}

void Core::Adopt(const std::shared_ptr<Session>& session) {
  current_ = session;
  ++sessions_made_;
  std::erase_if(sessions_, [](const auto& weak) { return weak.expired(); });
  for (const auto& weak : sessions_) {
    // Whoever still holds an earlier life's handle learns now that it is stale.
    if (auto old = weak.lock();
        old != nullptr && old->daemon().incarnation != session->daemon().incarnation) {
      old->MarkRestarted();
    }
  }
  sessions_.push_back(session);
  if (session->choice() != last_choice_) {
    last_choice_ = session->choice();
    LogInfo("client", absl::StrCat("connected to ", options_.address, " over ", last_choice_));
  }
}

void Core::DropDeadSession() {
  std::shared_ptr<Session> dead;
  MutexLock lock(mutex_);
  if (current_ == nullptr || current_->alive()) return;
  last_loss_ = std::string(current_->Status().message());
  LogWarning("client", absl::StrCat("connection to ", options_.address, " lost: ", last_loss_));
  dead = std::move(current_);
  current_ = nullptr;
}

absl::Status Core::OnSession(
    MonotonicTime deadline,
    const std::function<absl::Status(const std::shared_ptr<Session>&)>& call) {
  Backoff backoff;
  absl::Status last;
  while (true) {
    OASISKV_ASSIGN_OR_RETURN(std::shared_ptr<Session> session, CurrentSession(deadline));
    OASISKV_PAUSE_POINT("client.session.call");
    last = call(session);
    if (last.ok() || !WorthRepeating(last)) return last;
    // STALE of a session that lives is the daemon's word on a grant, not on the session.
    if (ErrorCodeOf(last) == ErrorCode::kStale && session->alive()) return last;
    session.reset();
    backoff.Pause(deadline);
    if (Clock::Real().Now() >= deadline) return last;
  }
}

absl::Status Core::Health() const {
  MutexLock lock(mutex_);
  if (current_ != nullptr && current_->alive()) return absl::OkStatus();
  return MakeError(
      ErrorCode::kPeerLost,
      absl::StrCat("not connected to the daemon at ", options_.address, " (",
                   current_ != nullptr ? std::string(current_->Status().message()) : last_loss_,
                   "); the next Open or Attach connects anew"));
}

std::string Core::Describe() const {
  MutexLock lock(mutex_);
  if (current_ != nullptr) return current_->Describe();
  return absl::StrCat("not connected to ", options_.address, ": ", last_loss_);
}

std::string Core::FabricName() const {
  MutexLock lock(mutex_);
  if (current_ == nullptr) return {};
  return std::string(current_->reader().fabric());
}

ClientStats Core::Stats() const {
  ClientStats out;
  std::vector<std::shared_ptr<Session>> live;  // destroyed after the lock is let go
  fabric::ConnectionStats data;
  {
    MutexLock lock(mutex_);
    for (const auto& weak : sessions_) {
      if (auto session = weak.lock()) live.push_back(std::move(session));
    }
    out.reconnects = sessions_made_ == 0 ? 0 : sessions_made_ - 1;
    data = retired_->Get();
  }
  for (const auto& session : live) AddStats(session->Stats(), &data);
  out.reads = data.reads;
  out.writes = data.writes;
  out.pieces = data.pieces;
  out.requests = data.requests;
  out.bytes_read = data.bytes_read;
  out.bytes_written = data.bytes_written;
  out.request_bytes = data.request_bytes;
  out.bytes_direct = data.bytes_direct;
  out.bytes_bounced = data.bytes_bounced;
  out.grant_checks = data.grant_checks;
  out.timed_reads = outcomes_.timed.load(std::memory_order_relaxed);
  out.prepare_ns = outcomes_.prepare_ns.load(std::memory_order_relaxed);
  out.post_ns = outcomes_.post_ns.load(std::memory_order_relaxed);
  out.wire_ns = outcomes_.wire_ns.load(std::memory_order_relaxed);
  out.stale_reads = outcomes_.stale.load(std::memory_order_relaxed);
  out.expired_reads = outcomes_.expired.load(std::memory_order_relaxed);
  out.deadline_reads = outcomes_.deadline.load(std::memory_order_relaxed);
  out.failed_reads = outcomes_.failed.load(std::memory_order_relaxed);
  out.checksums_verified = outcomes_.checksums_verified.load(std::memory_order_relaxed);
  out.checksum_failures = outcomes_.checksum_failures.load(std::memory_order_relaxed);
  out.renewals = keeper_.renewals();
  out.grants_lost = keeper_.grants_lost();
  return out;
}

BatchDeadline CutByLease(MonotonicTime asked, const GrantState& grant) {
  const MonotonicTime end = grant.lease_end();
  return end < asked ? BatchDeadline{end, true} : BatchDeadline{asked, false};
}

absl::Status ExplainEnd(const absl::Status& status, BatchDeadline deadline, const GrantState& grant,
                        const Session& session) {
  if (status.ok()) return status;
  if (session.restarted()) return session.Status();
  switch (ErrorCodeOf(status)) {
    case ErrorCode::kDeadlineExceeded:
      if (deadline.cut_by_lease) {
        if (absl::Status lease = grant.Check(Clock::Real().Now()); !lease.ok()) return lease;
      }
      return status;
    case ErrorCode::kNotFound:
      // The daemon has forgotten the grant; for its holder that is the same as revoked.
      return MakeError(ErrorCode::kStale, status.message());
    default:
      return status;
  }
}

}  // namespace oasiskv::client
