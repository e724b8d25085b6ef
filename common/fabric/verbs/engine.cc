#include "common/fabric/verbs/engine.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/pause_point.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric::verbs {
namespace {

// How long the thread looks for completions before it sleeps.
constexpr Duration kSpin = std::chrono::microseconds(50);

MonotonicTime Now() { return std::chrono::steady_clock::now(); }

}  // namespace

void Engine::Stop() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
    Lose(MakeError(ErrorCode::kCancelled, "the connection was closed"));
    WakeIfSleeping();
  }
  if (thread_.joinable()) thread_.join();
  MutexLock lock(mutex_);
  pairs_.clear();
}

std::string Engine::Describe() {
  MutexLock lock(mutex_);
  return absl::StrCat("verbs on ", port_.device, " port ", static_cast<int>(port_.number), ", GID ",
                      GidText(gid_.gid), " to ", GidText(server_.port.gid), ", ",
                      options_.queue_pairs, " queue pairs, ", window_ / kWindowFactor,
                      " reads on the wire each");
}

absl::Status Engine::Health() {
  MutexLock lock(mutex_);
  return lost_;
}

ConnectionStats Engine::Stats() {
  MutexLock lock(mutex_);
  return stats_;
}

void Engine::CountStart(const Batch& batch, size_t pieces) {
  ++(batch.access == Access::kRead ? stats_.reads : stats_.writes);
  stats_.pieces += pieces;
}

void Engine::TakeSpare(std::vector<Stretch>& parcel) {
  if (spares_.empty()) return;
  parcel = std::move(spares_.back());
  spares_.pop_back();
}

bool Engine::Open(const std::shared_ptr<Batch>& batch, size_t pieces,
                  std::vector<Stretch>& parcel) {
  MutexLock lock(mutex_);
  CountStart(*batch, pieces);
  if (!lost_.ok()) {
    Finish(*batch, lost_);
    return false;
  }
  if (batch->access == Access::kWrite) {
    if (!gate_.Enter(batch->grant->id)) {
      Finish(*batch,
             MakeError(ErrorCode::kStale, "this client has fenced the grant: it writes no more"));
      return false;
    }
    batch->counted_as_write = true;
  }
  batch->prepared = batch->posted = Now();
  batch->times.prepare = batch->prepared - batch->started;
  batch->live_at = live_.size();
  live_.push_back(batch);
  SweepBy(batch->deadline);
  TakeSpare(parcel);
  return true;
}

bool Engine::AddParcel(const std::shared_ptr<Batch>& batch, std::vector<Stretch>& parcel,
                       bool last) {
  MutexLock lock(mutex_);
  while (batch->parcels.size() >= kMaxParcels && !batch->Over()) batch->changed.Wait(mutex_);
  if (batch->Over()) return false;
  if (!parcel.empty()) {
    batch->parcels.push_back(std::move(parcel));
    Enqueue(batch);
    parcel.clear();
  }
  batch->filled = last;
  Pump();
  CheckIfComplete(batch);
  if (!to_check_.empty()) WakeIfSleeping();
  if (!last) TakeSpare(parcel);
  return true;
}

void Engine::Refuse(const std::shared_ptr<Batch>& batch, size_t pieces, const absl::Status& why) {
  MutexLock lock(mutex_);
  CountStart(*batch, pieces);
  Finish(*batch, why);
}

absl::Status Engine::Wait(const std::shared_ptr<Batch>& batch) {
  MutexLock lock(mutex_);
  while (!batch->outcome.has_value()) batch->changed.Wait(mutex_);
  return *batch->outcome;
}

void Engine::Cancel(const std::shared_ptr<Batch>& batch) {
  MutexLock lock(mutex_);
  EndEarly(batch, MakeError(ErrorCode::kCancelled, "the batch was cancelled"), Now());
  WakeIfSleeping();
  while (!batch->outcome.has_value()) batch->changed.Wait(mutex_);
}

TransferTimes Engine::Times(const Batch& batch) {
  MutexLock lock(mutex_);
  return batch.times;
}

bool Engine::CloseGate(GrantId grant) {
  const bool first = gate_.Close(grant);
  MutexLock lock(mutex_);
  return first && lost_.ok() && !writes_adrift_;
}

void Engine::WakeIfSleeping() {
  if (sleeping_) ::eventfd_write(wake_.get(), 1);
}

void Engine::SweepBy(MonotonicTime when) {
  next_sweep_ = std::min(next_sweep_, when);
  if (when < wakes_at_) WakeIfSleeping();
}

MonotonicTime Engine::NextSweep() const {
  if (!lost_.ok() || outstanding_ > 0) return next_sweep_;
  return std::min(next_sweep_, last_heard_ + options_.keepalive);
}

// What is due is looked at with each completion and before each sleep, which comes soon when there
// are none: looking for completions in vain takes no lock.
void Engine::Run() {
  std::array<ibv_wc, 64> done;
  MonotonicTime active = Now();
  bool armed = false;  // the device will tell of a completion that comes from now on
  bool slept = false;
  while (true) {
    const int count = ::ibv_poll_cq(completions_.get(), static_cast<int>(done.size()), done.data());
    if (count == 0 && armed) {
      Block();
      armed = false;
      slept = true;
      continue;
    }
    const MonotonicTime now = Now();
    bool check = false;
    if (count != 0 || slept) {
      MutexLock lock(mutex_);
      sleeping_ = slept = false;
      if (count < 0) {
        Lose(MakeError(ErrorCode::kInternal,
                       absl::StrCat("the RDMA device '", port_.device, "' cannot be polled")));
      }
      for (int i = 0; i < count; ++i) OnCompletion(done[i], now);
      Pump();
      if (now >= NextSweep()) Sweep(now);
      check = !to_check_.empty();
      if (stop_ && outstanding_ == 0) return;
    }
    if (check) {
      OASISKV_PAUSE_POINT("verbs.before_grant_word");
      MutexLock lock(mutex_);
      PostWordReads();
    }
    if (count > 0) {
      active = now;
      armed = false;
    } else if (now - active > kSpin) {
      ::ibv_req_notify_cq(completions_.get(), 0);
      armed = true;
    }
  }
}

void Engine::Block() {
  int timeout = 0;
  {
    MutexLock lock(mutex_);
    const MonotonicTime now = Now();
    if (now >= NextSweep()) Sweep(now);
    if ((stop_ && outstanding_ == 0) || !to_check_.empty()) return;
    wakes_at_ = NextSweep();
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(wakes_at_ - now);
    timeout = static_cast<int>(std::clamp<int64_t>(left.count(), 0, 60'000));
    sleeping_ = true;
  }
  std::array<pollfd, 2> wait = {pollfd{channel_->fd, POLLIN, 0}, pollfd{wake_.get(), POLLIN, 0}};
  ::poll(wait.data(), wait.size(), timeout);
  if (wait[0].revents != 0) {
    ibv_cq* queue = nullptr;
    void* context = nullptr;
    unsigned events = 0;
    while (::ibv_get_cq_event(channel_.get(), &queue, &context) == 0) ++events;
    if (events > 0) ::ibv_ack_cq_events(completions_.get(), events);
  }
  if (wait[1].revents != 0) {
    eventfd_t ignored;
    ::eventfd_read(wake_.get(), &ignored);
  }
}

}  // namespace oasiskv::fabric::verbs
