// Monotonic time behind an interface, so that tests can move it.
#pragma once

#include <atomic>
#include <chrono>

namespace oasiskv {

using MonotonicTime = std::chrono::steady_clock::time_point;
using Duration = std::chrono::nanoseconds;

// Thread contract: safe for concurrent use.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual MonotonicTime Now() const = 0;

  // CLOCK_MONOTONIC of this machine; lives for ever.
  static const Clock& Real();
};

// Thread contract: safe for concurrent use.
class FakeClock : public Clock {
 public:
  MonotonicTime Now() const override { return MonotonicTime(Duration(nanos_.load())); }
  void Advance(Duration by) { nanos_.fetch_add(by.count()); }

 private:
  std::atomic<int64_t> nanos_{1'000'000'000};
};

inline Duration Millis(int64_t n) { return std::chrono::milliseconds(n); }

}  // namespace oasiskv
