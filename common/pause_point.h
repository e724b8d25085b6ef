// Named places in production code where a test can stop a thread, so that races can be tested.
#pragma once

#include <atomic>
#include <chrono>

#include "absl/strings/string_view.h"

namespace oasiskv {

// Thread contract: all functions are safe for concurrent use.
//
// A test arms a point by name, waits until a thread has reached it, acts, and releases it. An
// unarmed point costs one relaxed load of one process-wide flag.
class PausePoints {
 public:
  // The next thread that comes to `name` stops there. One thread per arming.
  static void Arm(absl::string_view name);
  // True when a thread is stopped at `name`; false when `timeout` passed first.
  static bool WaitReached(absl::string_view name,
                          std::chrono::nanoseconds timeout = std::chrono::seconds(30));
  // Lets the thread at `name` continue; disarms a point that no thread has reached.
  static void Release(absl::string_view name);
  // Threads that are stopped now, at any point: a test must leave 0.
  static int Waiting();

  static bool AnyArmed() { return any_armed_.load(std::memory_order_relaxed); }
  static void Reach(absl::string_view name);

 private:
  static std::atomic<bool> any_armed_;
};

}  // namespace oasiskv

#define OASISKV_PAUSE_POINT(name)                                                \
  do {                                                                           \
    if (::oasiskv::PausePoints::AnyArmed()) ::oasiskv::PausePoints::Reach(name); \
  } while (false)
