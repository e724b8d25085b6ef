#include "server/service/attach_waiters.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "oasiskv/error.h"

namespace oasiskv::server {
namespace {

constexpr Duration kSweepInterval = std::chrono::milliseconds(250);

// A wait goes on while the core answers with one of these.
bool KeepsWaiting(const absl::Status& status) {
  const ErrorCode code = ErrorCodeOf(status);
  return code == ErrorCode::kNotFound || code == ErrorCode::kNotSealed;
}

absl::Status Stopping() {
  return MakeError(ErrorCode::kDraining, "the daemon is stopping; use another daemon");
}

}  // namespace

AttachWaiters::AttachWaiters(uint32_t max_waiters)
    : max_waiters_(max_waiters), thread_([this] { Run(); }) {}

void AttachWaiters::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    wake_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
  for (;;) {
    Waiter waiter;
    {
      MutexLock lock(mutex_);
      if (waiters_.empty()) return;
      Remove(waiters_.begin()->first, &waiter);
    }
    waiter.done(Stopping());
  }
}

absl::StatusOr<uint64_t> AttachWaiters::Add(KvCore& core, std::string name, Identity identity,
                                            Found found, MonotonicTime deadline, Done done) {
  MutexLock lock(mutex_);
  if (stopping_) return Stopping();
  if (waiters_.size() >= max_waiters_) {
    return MakeError(ErrorCode::kCapacity,
                     absl::StrCat(waiters_.size(),
                                  " attach calls wait for a seal already; the limit is "
                                  "--max_attach_waiters=",
                                  max_waiters_));
  }
  const uint64_t id = ++last_id_;
  if (waiters_.empty()) next_sweep_ = Clock::Real().Now() + kSweepInterval;
  by_deadline_.emplace(deadline, id);
  waiters_.emplace(id, Waiter{&core, std::move(name), std::move(identity), deadline,
                              std::move(done), found == Found::kOpen});
  // The seal may have come after the caller looked.
  new_.push_back(id);
  wake_.NotifyAll();
  return id;
}

bool AttachWaiters::Cancel(uint64_t waiter) {
  Waiter cancelled;
  MutexLock lock(mutex_);
  return Remove(waiter, &cancelled);
}

void AttachWaiters::Notify() {
  MutexLock lock(mutex_);
  if (waiters_.empty()) return;
  look_at_all_ = true;
  wake_.NotifyAll();
}

size_t AttachWaiters::size() const {
  MutexLock lock(mutex_);
  return waiters_.size();
}

void AttachWaiters::Run() {
  for (;;) {
    std::vector<uint64_t> due;
    {
      MutexLock lock(mutex_);
      for (;;) {
        if (stopping_) return;
        MonotonicTime wake;
        due = TakeDue(Clock::Real().Now(), &wake);
        if (!due.empty()) break;
        if (waiters_.empty()) {
          wake_.Wait(mutex_);
        } else {
          wake_.WaitUntil(mutex_, wake);
        }
      }
    }
    for (const uint64_t id : due) Look(id);
  }
}

std::vector<uint64_t> AttachWaiters::TakeDue(MonotonicTime now, MonotonicTime* wake) {
  std::vector<uint64_t> due = std::exchange(new_, {});
  if (look_at_all_ || now >= next_sweep_) {
    look_at_all_ = false;
    next_sweep_ = now + kSweepInterval;
    due.clear();
    for (const auto& [id, waiter] : waiters_) due.push_back(id);
    return due;
  }
  for (const auto& [deadline, id] : by_deadline_) {
    if (deadline > now) break;
    due.push_back(id);
  }
  *wake = next_sweep_;
  if (!by_deadline_.empty()) *wake = std::min(*wake, by_deadline_.begin()->first);
  return due;
}

void AttachWaiters::Look(uint64_t id) {
  Waiter waiter;  // a copy, but for `done`
  {
    MutexLock lock(mutex_);
    const auto it = waiters_.find(id);
    if (it == waiters_.end()) return;
    const Waiter& w = it->second;
    waiter = {w.core, w.name, w.identity, w.deadline, nullptr, w.seen_open};
  }
  const MonotonicTime now = Clock::Real().Now();
  absl::Status status = waiter.core->CheckSealed(waiter.name, waiter.identity);
  const ErrorCode code = ErrorCodeOf(status);
  if (code == ErrorCode::kNotFound && waiter.seen_open) {
    status =
        MakeError(ErrorCode::kWrongState,
                  absl::StrCat("sequence '", waiter.name,
                               "' ended without a seal during the wait: it was aborted, or its "
                               "writer released it or lost its lease"));
  }
  {
    MutexLock lock(mutex_);
    const auto it = waiters_.find(id);
    if (it == waiters_.end()) return;  // cancelled meanwhile
    it->second.seen_open |= code == ErrorCode::kNotSealed;
    if (KeepsWaiting(status) && now < waiter.deadline) return;
    Remove(id, &waiter);
  }
  waiter.done(status);
}

bool AttachWaiters::Remove(uint64_t id, Waiter* out) {
  const auto it = waiters_.find(id);
  if (it == waiters_.end()) return false;
  *out = std::move(it->second);
  waiters_.erase(it);
  by_deadline_.erase({out->deadline, id});
  return true;
}

}  // namespace oasiskv::server
