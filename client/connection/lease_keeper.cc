#include "client/connection/lease_keeper.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/pause_point.h"

namespace oasiskv::client {
namespace {

constexpr Duration kTick = std::chrono::milliseconds(500);
// How often a daemon that is gone is asked whether it has come back as another.
constexpr Duration kProbe = std::chrono::milliseconds(250);
// What the goodbyes of a client that ends may take together.
constexpr Duration kFarewell = std::chrono::seconds(1);
constexpr size_t kGrantsPerCall = 16384;  // the daemon takes 65,536; this keeps a call small

}  // namespace

LeaseKeeper::LeaseKeeper(Duration rpc_timeout, std::function<void()> on_tick)
    : rpc_timeout_(rpc_timeout), on_tick_(std::move(on_tick)), thread_([this] { Run(); }) {}

LeaseKeeper::~LeaseKeeper() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

std::shared_ptr<GrantState> LeaseKeeper::Hold(std::shared_ptr<Session> session,
                                              const GivenGrant& given, Duration asked_lease,
                                              GrantRole role) {
  auto grant = std::make_shared<GrantState>(given.key, asked_lease, given.sent, given.lease);
  MutexLock lock(mutex_);
  const MonotonicTime now = Clock::Real().Now();
  const MonotonicTime next =
      std::max(now, grant->lease_end() - grant->lease() + grant->lease() / 3);
  ++holds_;
  held_[grant.get()] = Held{std::move(session), grant, role, next, now};
  changed_.NotifyAll();
  return grant;
}

void LeaseKeeper::Drop(const GrantState& grant) {
  MutexLock lock(mutex_);
  held_.erase(&grant);
}

void LeaseKeeper::ReleaseLater(std::shared_ptr<Session> session,
                               std::shared_ptr<GrantState> grant) {
  MutexLock lock(mutex_);
  held_.erase(grant.get());
  farewells_.push_back({std::move(session), std::move(grant)});
  changed_.NotifyAll();
}

void LeaseKeeper::AbandonOpen(std::shared_ptr<Session> session, CallToken open) {
  MutexLock lock(mutex_);
  abandoned_.push_back({std::move(session), open});
}

void LeaseKeeper::SendAbandoned() {
  std::vector<Abandoned> all;
  {
    MutexLock lock(mutex_);
    all.swap(abandoned_);
  }
  auto next = all.begin();
  for (; next != all.end(); ++next) {
    if (!next->session->alive() || next->session->restarted()) continue;
    // A daemon that does not answer must not keep this thread from its renewals: once a tick.
    if (!next->session->control().AbandonOpen(next->open, rpc_timeout_).ok()) break;
  }
  MutexLock lock(mutex_);
  abandoned_.insert(abandoned_.end(), next, all.end());
}

void LeaseKeeper::Run() {
  MonotonicTime next_tick = Clock::Real().Now() + kTick;
  while (true) {
    std::vector<Farewell> farewells;
    bool stopping = false;
    MonotonicTime wake = next_tick;
    uint64_t seen = 0;
    const std::vector<Group> due = TakeDue(Clock::Real().Now(), &wake, &seen);
    {
      MutexLock lock(mutex_);
      // A new grant may have brought an earlier time, so any wake-up looks again.
      if (due.empty() && farewells_.empty() && !stopping_ && holds_ == seen) {
        changed_.WaitUntil(mutex_, wake);
      }
      farewells.swap(farewells_);
      stopping = stopping_;
    }
    if (!farewells.empty()) {
      SendFarewells(farewells, stopping ? kFarewell : rpc_timeout_);
    }
    if (stopping) {
      MutexLock lock(mutex_);
      if (farewells_.empty()) return;
      continue;
    }
    for (const Group& group : due) Renew(group);
    if (const MonotonicTime now = Clock::Real().Now(); now >= next_tick) {
      next_tick = now + kTick;
      SendAbandoned();
      on_tick_();
    }
  }
}

std::vector<LeaseKeeper::Group> LeaseKeeper::TakeDue(MonotonicTime now, MonotonicTime* next,
                                                     uint64_t* holds) {
  std::map<std::pair<Session*, int64_t>, Group> groups;
  std::map<Session*, bool> alive;
  std::map<std::pair<Session*, int64_t>, bool> is_due;
  {
    MutexLock lock(mutex_);
    *holds = holds_;
    for (const auto& [_, held] : held_) {
      const auto key = std::make_pair(held.session.get(), held.grant->asked_lease().count());
      groups[key].push_back(held);
    }
  }
  for (const auto& [key, group] : groups) alive.emplace(key.first, true);
  for (auto& [session, is_alive] : alive) is_alive = session->alive();
  for (const auto& [key, group] : groups) {
    for (const Held& held : group) {
      MonotonicTime at = held.next;
      if (!alive[key.first]) at = std::min(at, held.last_try + kProbe);
      if (at <= now) is_due[key] = true;
      *next = std::min(*next, at);
    }
  }
  std::vector<Group> due;
  for (auto& [key, group] : groups) {
    if (is_due[key]) due.push_back(std::move(group));
  }
  return due;
}

void LeaseKeeper::Reschedule(const Group& group, MonotonicTime next) {
  const MonotonicTime now = Clock::Real().Now();
  MutexLock lock(mutex_);
  for (const Held& held : group) {
    if (auto it = held_.find(held.grant.get()); it != held_.end()) {
      it->second.next = next;
      it->second.last_try = now;
    }
  }
}

void LeaseKeeper::Lose(const Held& held, ErrorCode reason, const std::string& message) {
  held.grant->Lose(reason, message);
  grants_lost_.fetch_add(1, std::memory_order_relaxed);
  {
    MutexLock lock(mutex_);
    held_.erase(held.grant.get());
  }
  if (held.role != GrantRole::kWriter) return;
  if (auto writer = held.session->Writer(); writer.ok()) {
    (*writer)->FenceWriter(held.grant->key().id);
  }
}

void LeaseKeeper::Renew(const Group& group) {
  OASISKV_PAUSE_POINT("client.keeper.renew");
  Session& session = *group.front().session;
  const Duration lease = group.front().grant->lease();
  const Duration timeout =
      std::clamp(lease / 3, Duration(Millis(200)), std::max(rpc_timeout_, Duration(Millis(200))));
  for (size_t first = 0; first < group.size(); first += kGrantsPerCall) {
    const size_t count = std::min(kGrantsPerCall, group.size() - first);
    const Group part(group.begin() + first, group.begin() + first + count);
    std::vector<GrantKey> keys;
    std::unordered_map<uint64_t, const Held*> by_id;
    for (const Held& held : part) {
      keys.push_back(held.grant->key());
      by_id[held.grant->key().id.value()] = &held;
    }
    absl::StatusOr<Renewed> answer = absl::UnknownError("");
    if (!session.restarted()) {
      answer = session.control().Renew(keys, part.front().grant->asked_lease(), timeout);
      if (answer.ok() && answer->incarnation != session.daemon().incarnation) {
        session.MarkRestarted();
      }
    }
    if (session.restarted()) {
      for (const Held& held : part) {
        Lose(held, ErrorCode::kStale, "the daemon restarted; open or attach again");
      }
      continue;
    }
    if (!answer.ok()) {
      // Soon again; meanwhile each grant's own clock suspends it when its lease ends.
      static LogGate gate;
      if (gate.Pass()) {
        LogWarning("client", absl::StrCat("renewing ", part.size(), " leases failed (",
                                          answer.status().message(), "); trying again"));
      }
      const Duration pause = std::clamp(lease / 10, Duration(Millis(50)), Duration(Millis(1000)));
      Reschedule(part, Clock::Real().Now() + pause);
      continue;
    }
    renewals_.fetch_add(1, std::memory_order_relaxed);
    for (const Renewed::Lost& lost : answer->lost) {
      const auto it = by_id.find(lost.id.value());
      if (it == by_id.end()) continue;
      const ErrorCode reason =
          lost.reason == ErrorCode::kLeaseExpired ? ErrorCode::kLeaseExpired : ErrorCode::kStale;
      Lose(*it->second, reason,
           reason == ErrorCode::kLeaseExpired
               ? "the daemon ended the lease before it was renewed; attach again"
               : "the grant was released, aborted or evicted at the daemon; attach again");
      by_id.erase(it);
    }
    for (const auto& [_, held] : by_id) held->grant->Prolong(answer->sent, answer->lease);
    Reschedule(part, answer->sent + answer->lease / 3);
  }
}

void LeaseKeeper::SendFarewells(std::span<const Farewell> farewells, Duration limit) {
  const MonotonicTime deadline = Clock::Real().Now() + limit;
  std::map<Session*, std::vector<GrantKey>> releases;
  for (const Farewell& farewell : farewells) {
    // What belongs to an earlier life of the daemon is gone already.
    if (farewell.session->restarted() || farewell.grant->lost()) continue;
    releases[farewell.session.get()].push_back(farewell.grant->key());
  }
  for (const auto& [session, keys] : releases) {
    for (size_t first = 0; first < keys.size(); first += kGrantsPerCall) {
      const Duration left = deadline - Clock::Real().Now();
      if (left <= Duration(0)) return;
      const auto part =
          std::span(keys).subspan(first, std::min(kGrantsPerCall, keys.size() - first));
      // A lost goodbye costs memory until the lease ends, nothing else.
      if (const absl::Status s = session->control().Release(part, left); !s.ok()) {
        LogDebug("client", absl::StrCat("release: ", s.message()));
      }
    }
  }
}

}  // namespace oasiskv::client
