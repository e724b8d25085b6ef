#include "client/connection/session.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::client {

void AddStats(const fabric::ConnectionStats& from, fabric::ConnectionStats* to) {
  to->reads += from.reads;
  to->writes += from.writes;
  to->pieces += from.pieces;
  to->requests += from.requests;
  to->bytes_read += from.bytes_read;
  to->bytes_written += from.bytes_written;
  to->bytes_direct += from.bytes_direct;
  to->bytes_bounced += from.bytes_bounced;
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
    : address_(options.address),
      retired_(std::move(retired)),
      control_(std::make_shared<ControlChannel>(options.address)) {}

Session::~Session() { retired_->Add(Stats()); }

absl::StatusOr<std::shared_ptr<Session>> Session::Connect(const ClientOptions& options,
                                                          Duration timeout,
                                                          std::shared_ptr<RetiredStats> retired) {
  const MonotonicTime deadline = Clock::Real().Now() + timeout;
  std::shared_ptr<Session> session(new Session(options, std::move(retired)));
  OASISKV_ASSIGN_OR_RETURN(session->daemon_, session->control_->Describe(timeout));
  session->connector_.emplace(options, session->control_, session->daemon_);
  OASISKV_ASSIGN_OR_RETURN(
      ChosenFabric chosen,
      session->connector_->Choose(std::max(deadline - Clock::Real().Now(), Duration(Millis(1)))));
  session->fabric_ = chosen.fabric;
  session->reader_ = std::move(chosen.reader);
  session->choice_ = std::move(chosen.why);
  return session;
}

absl::StatusOr<fabric::Connection*> Session::Writer() {
  if (!fabric_->writer_connection) return reader_.get();
  MutexLock lock(mutex_);
  if (writer_ == nullptr) {
    OASISKV_ASSIGN_OR_RETURN(writer_, connector_->ConnectWriter(*fabric_));
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
  OASISKV_ASSIGN_OR_RETURN(DaemonInfo now, control_->Describe(timeout));
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
