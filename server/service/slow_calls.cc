#include "server/service/slow_calls.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "oasiskv/error.h"

namespace oasiskv::server {
namespace {

absl::Status Stopping() { return MakeError(ErrorCode::kDraining, "the daemon is stopping"); }

}  // namespace

SlowCalls::SlowCalls(size_t threads, size_t max_waiting) : max_waiting_(max_waiting) {
  for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

void SlowCalls::Stop() {
  std::deque<Work> left;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    left.swap(waiting_);
    changed_.NotifyAll();
  }
  for (const Work& work : left) work(Stopping());
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

absl::Status SlowCalls::Add(Work work) {
  MutexLock lock(mutex_);
  if (stopping_) return Stopping();
  if (waiting_.size() >= max_waiting_) {
    return MakeError(ErrorCode::kCapacity,
                     absl::StrCat(max_waiting_,
                                  " calls that connect or disconnect wait already; repeat the "
                                  "call later"));
  }
  waiting_.push_back(std::move(work));
  changed_.NotifyAll();
  return absl::OkStatus();
}

void SlowCalls::Run() {
  while (true) {
    Work work;
    {
      MutexLock lock(mutex_);
      while (!stopping_ && waiting_.empty()) changed_.Wait(mutex_);
      if (stopping_) return;
      work = std::move(waiting_.front());
      waiting_.pop_front();
    }
    work(absl::OkStatus());
  }
}

}  // namespace oasiskv::server
