// Time in which the daemon was serving: what leases are counted in.
#pragma once

#include <algorithm>

#include "common/clock.h"

namespace oasiskv::server {

// Thread contract: not safe for concurrent use (the core's mutex guards it).
//
// Served time passes only through Tick, at most `max_tick` a call: a daemon that was stopped for 15
// s credits no more than one tick for it, so its clients' leases do not end while they could not
// renew them.
class ServedClock {
 public:
  ServedClock(MonotonicTime start, Duration max_tick) : last_(start), max_tick_(max_tick) {}

  void Tick(MonotonicTime now) {
    served_ = At(now);
    last_ = std::max(last_, now);
  }
  // What Tick(now) would make of it. A lease given between two ticks is counted from here, so that
  // it is never short.
  Duration At(MonotonicTime now) const {
    return served_ + std::clamp<Duration>(now - last_, Duration(0), max_tick_);
  }
  // As of the last tick.
  Duration served() const { return served_; }

 private:
  Duration served_{0};
  MonotonicTime last_;
  const Duration max_tick_;
};

}  // namespace oasiskv::server
