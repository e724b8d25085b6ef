#include "server/daemon/ticker.h"

#include <utility>

namespace oasiskv::server {

Ticker::Ticker(Duration interval, std::function<void(MonotonicTime)> tick)
    : interval_(interval), tick_(std::move(tick)), thread_([this] { Run(); }) {}

Ticker::~Ticker() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
    stop_changed_.NotifyAll();
  }
  thread_.join();
}

void Ticker::Run() {
  for (;;) {
    tick_(Clock::Real().Now());
    const MonotonicTime next = Clock::Real().Now() + interval_;
    MutexLock lock(mutex_);
    while (!stop_ && stop_changed_.WaitUntil(mutex_, next)) {
    }
    if (stop_) return;
  }
}

}  // namespace oasiskv::server
