// Runs calls that may block on threads of its own, since gRPC has only a few.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "common/mutex.h"

namespace oasiskv::server {

// Thread contract: safe for concurrent use; Stop and the destructor are called by one thread.
//
// A few threads and a bounded queue: callers that wait for the network can delay each other, but no
// other calls.
class SlowCalls {
 public:
  // Called once: OK, or DRAINING when the queue stopped before its turn came.
  using Work = std::function<void(const absl::Status&)>;

  SlowCalls(size_t threads, size_t max_waiting);
  ~SlowCalls() { Stop(); }
  // Ends waiting calls with DRAINING, and waits for running ones.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  // Errors: CAPACITY, DRAINING; then `work` is not called.
  absl::Status Add(Work work) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);

  const size_t max_waiting_;
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Work> waiting_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;  // last: they use all of the above
};

}  // namespace oasiskv::server
