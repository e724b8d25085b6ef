// Monotonic time behind an interface, so that tests can move it.
#pragma once

#include <chrono>
#include <cstdint>

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

inline Duration Millis(int64_t n) { return std::chrono::milliseconds(n); }

}  // namespace oasiskv
