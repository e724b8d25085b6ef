// When the engine's thread has to look at what is due, and how it is woken before.
#pragma once

#include <sys/eventfd.h>

#include <algorithm>

#include "common/clock.h"

namespace oasiskv::fabric::verbs {

// Thread contract: guarded by the engine's mutex.
class Alarm {
 public:
  // `wake` is an eventfd that the thread waits for while it sleeps.
  explicit Alarm(int wake) : wake_(wake) {}

  // The thread is to sweep then, or earlier.
  void By(MonotonicTime when) {
    due_ = std::min(due_, when);
    if (when < wakes_at_) Wake();
  }
  void Wake() {
    if (sleeping_) ::eventfd_write(wake_, 1);
  }
  MonotonicTime due() const { return due_; }

  // For the thread itself.
  void SleepsUntil(MonotonicTime when) {
    wakes_at_ = when;
    sleeping_ = true;
  }
  void Awake() { sleeping_ = false; }
  void Clear() { due_ = MonotonicTime::max(); }

 private:
  const int wake_;
  MonotonicTime due_ = MonotonicTime::max();
  MonotonicTime wakes_at_ = MonotonicTime::max();  // while sleeping
  bool sleeping_ = false;
};

}  // namespace oasiskv::fabric::verbs
