// The daemon's periodic work.
#pragma once

#include <functional>
#include <thread>

#include "common/clock.h"
#include "common/mutex.h"

namespace oasiskv::server {

// Thread contract: made and destroyed by one thread; `tick` runs on this object's own.
//
// Calls tick(now) every `interval` from construction to destruction.
class Ticker {
 public:
  Ticker(Duration interval, std::function<void(MonotonicTime)> tick);
  ~Ticker();

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);

  const Duration interval_;
  const std::function<void(MonotonicTime)> tick_;
  Mutex mutex_;
  CondVar stop_changed_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace oasiskv::server
