// A clock that stands still until a test moves it.
#pragma once

#include <atomic>
#include <cstdint>

#include "common/clock.h"

namespace oasiskv {

// Thread contract: safe for concurrent use.
class FakeClock : public Clock {
 public:
  MonotonicTime Now() const override { return MonotonicTime(Duration(nanos_.load())); }
  void Advance(Duration by) { nanos_.fetch_add(by.count()); }

 private:
  std::atomic<int64_t> nanos_{1'000'000'000};
};

}  // namespace oasiskv
