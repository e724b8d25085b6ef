#include "client/session/session.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/address.h"
#include "common/fabric/connect.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::client {
namespace {

// The address a UCX listener is reached at: one that is bound to every interface advertises no host
// of its own, so the control port's host stands in.
absl::StatusOr<std::string> UcxTarget(const std::string& advertised, const std::string& control) {
  OASISKV_ASSIGN_OR_RETURN(Address ucx, ParseAddress(advertised, 0));
  if (ucx.host == "0.0.0.0" || ucx.host == "::" || ucx.host.empty()) {
    OASISKV_ASSIGN_OR_RETURN(Address host, ParseAddress(control, 0));
    OASISKV_ASSIGN_OR_RETURN(SocketAddress resolved, Resolve(host));
    ucx.host = resolved.ToAddress().host;
  }
  return ucx.ToString();
}

}  // namespace

void AddStats(const fabric::ConnectionStats& from, fabric::ConnectionStats* to) {
  to->reads += from.reads;
  to->writes += from.writes;
  to->pieces += from.pieces;
  to->requests += from.requests;
  to->bytes_read += from.bytes_read;
  to->bytes_written += from.bytes_written;
  to->request_bytes += from.request_bytes;
  to->grant_checks += from.grant_checks;
  to->stale += from.stale;
  to->expired += from.expired;
  to->deadline += from.deadline;
  to->cancelled += from.cancelled;
  to->failed += from.failed;
}

void RetiredStats::Add(const fabric::ConnectionStats& stats) {
  MutexLock lock(mutex_);
  AddStats(stats, &sum_);
}

fabric::ConnectionStats RetiredStats::Get() const {
  MutexLock lock(mutex_);
  return sum_;
}

Session::Session(const ClientOptions& options, std::shared_ptr<RetiredStats> retired)
    : address_(options.address), retired_(std::move(retired)), control_(options.address) {}

Session::~Session() { retired_->Add(Stats()); }

absl::StatusOr<std::shared_ptr<Session>> Session::Connect(const ClientOptions& options,
                                                          Duration timeout,
                                                          std::shared_ptr<RetiredStats> retired) {
  const MonotonicTime deadline = Clock::Real().Now() + timeout;
  std::shared_ptr<Session> session(new Session(options, std::move(retired)));
  OASISKV_ASSIGN_OR_RETURN(session->daemon_, session->control_.Describe(timeout));
  OASISKV_RETURN_IF_ERROR(session->ConnectFabric(
      options, std::max(deadline - Clock::Real().Now(), Duration(Millis(1)))));
  return session;
}

absl::Status Session::ConnectFabric(const ClientOptions& options, Duration timeout) {
  std::string why_not_shm;
  if (options.fabric != FabricChoice::kUcx) {
    if (daemon_.shm_socket.empty()) {
      why_not_shm = "the daemon does not serve shm";
    } else {
      auto shm = fabric::ConnectShm(daemon_.shm_socket, daemon_.incarnation, fabric::Access::kRead);
      if (shm.ok()) {
        reader_ = *std::move(shm);
        choice_ =
            options.fabric == FabricChoice::kShm
                ? "shm, as asked"
                : absl::StrCat("shm: the daemon is on this host (socket ", daemon_.shm_socket, ")");
        return absl::OkStatus();
      }
      // The same path may belong to another daemon here while ours is elsewhere: only a named shm
      // fails for it.
      if (options.fabric == FabricChoice::kShm) return Annotate(shm.status(), "shm");
      why_not_shm = absl::StrCat("shm: ", shm.status().message());
    }
    if (options.fabric == FabricChoice::kShm) {
      return MakeError(ErrorCode::kUnsupported,
                       absl::StrCat("fabric shm was asked; the daemon at ", address_, " serves ",
                                    daemon_.ucx_address.empty() ? "no fabric" : "ucx only",
                                    "; start it with an shm socket or use ucx"));
    }
  }
  if (daemon_.ucx_address.empty()) {
    return MakeError(
        ErrorCode::kUnsupported,
        options.fabric == FabricChoice::kUcx
            ? absl::StrCat("fabric ucx was asked; the daemon at ", address_, " serves ",
                           daemon_.shm_socket.empty() ? "no fabric" : "shm only",
                           "; start it with a UCX listener or use shm on its host")
            : absl::StrCat("no fabric reaches the daemon at ", address_, ": ", why_not_shm,
                           "; ucx: the daemon does not serve it"));
  }
  OASISKV_RETURN_IF_ERROR(ConnectUcx(options, timeout));
  choice_ = options.fabric == FabricChoice::kUcx ? "ucx, as asked"
                                                 : absl::StrCat("ucx, because ", why_not_shm);
  return absl::OkStatus();
}

absl::Status Session::ConnectUcx(const ClientOptions& options, Duration timeout) {
  fabric::UcxConnectOptions ucx;
  OASISKV_ASSIGN_OR_RETURN(ucx.address, UcxTarget(daemon_.ucx_address, options.address));
  ucx.incarnation = daemon_.incarnation;
  ucx.connect_timeout = timeout;
  auto connection = fabric::ConnectUcx(ucx);
  if (!connection.ok()) return Annotate(connection.status(), "ucx");
  reader_ = *std::move(connection);
  return absl::OkStatus();
}

absl::StatusOr<fabric::Connection*> Session::Writer() {
  if (reader_->kind() != fabric::Kind::kShm) return reader_.get();
  MutexLock lock(mutex_);
  if (writer_ == nullptr) {
    auto writer =
        fabric::ConnectShm(daemon_.shm_socket, daemon_.incarnation, fabric::Access::kWrite);
    if (!writer.ok()) return Annotate(writer.status(), "shm, for writing");
    writer_ = *std::move(writer);
  }
  return writer_.get();
}

absl::Status Session::Status() const {
  if (restarted()) {
    return MakeError(ErrorCode::kStale,
                     absl::StrCat("the daemon at ", address_,
                                  " restarted; the handle belongs to its earlier life: open or "
                                  "attach again"));
  }
  if (lost_.load(std::memory_order_acquire)) {
    MutexLock lock(mutex_);
    return MakeError(ErrorCode::kPeerLost, lost_why_);
  }
  absl::Status health = reader_->Health();
  if (health.ok()) {
    std::shared_ptr<fabric::Connection> writer;
    {
      MutexLock lock(mutex_);
      writer = writer_;
    }
    if (writer != nullptr) health = writer->Health();
  }
  return health;
}

void Session::MarkRestarted() {
  if (restarted_.exchange(true, std::memory_order_acq_rel)) return;
  LogWarning("client",
             absl::StrCat("the daemon at ", address_, " restarted (incarnation was ",
                          daemon_.incarnation, "); handles of its earlier life are stale"));
}

void Session::MarkLost(const std::string& why) {
  MutexLock lock(mutex_);
  if (lost_.load(std::memory_order_relaxed)) return;
  lost_why_ = why;
  lost_.store(true, std::memory_order_release);
}

absl::Status Session::VerifyGrant(GrantId grant, Duration timeout) {
  const uint64_t high = grant.value() >> 32;
  if (high != 0 && grant_high_half_.load(std::memory_order_acquire) == high) {
    return absl::OkStatus();
  }
  // Asked after the grant was given: when the daemon that answers now is ours, then so was the one
  // that gave the grant.
  OASISKV_ASSIGN_OR_RETURN(DaemonInfo now, control_.Describe(timeout));
  if (now.incarnation != daemon_.incarnation) {
    MarkRestarted();
    return Status();
  }
  grant_high_half_.store(high, std::memory_order_release);
  return absl::OkStatus();
}

std::string Session::Describe() const {
  return absl::StrCat("oasiskvd ", daemon_.version, " at ", address_, ", ", reader_->Describe(),
                      " (", choice_, ")");
}

fabric::ConnectionStats Session::Stats() const {
  fabric::ConnectionStats stats;
  if (reader_ != nullptr) AddStats(reader_->Stats(), &stats);
  MutexLock lock(mutex_);
  if (writer_ != nullptr) AddStats(writer_->Stats(), &stats);
  return stats;
}

}  // namespace oasiskv::client
