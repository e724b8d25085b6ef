// Attach calls that wait for their sequence to be sealed.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "server/core/kv_core.h"

namespace oasiskv::server {

// Thread contract: safe for concurrent use.
//
// One thread serves all waiters. It looks at their sequences when it is notified, when a deadline
// passes, and a few times a second, since a sequence also ends when its writer's lease ends. A waiter
// costs memory only, and their number is limited.
class AttachWaiters {
 public:
  using Done = std::function<void(const absl::Status&)>;
  // What the caller found before it waits: if the sequence was open then and is gone later, it has
  // ended without a seal.
  enum class Found { kNothing, kOpen };

  explicit AttachWaiters(uint32_t max_waiters);
  ~AttachWaiters() { Stop(); }
  // Ends every waiter with DRAINING, also those that come later. Called by one thread.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  // `done` is called once, from this object's thread, unless Cancel comes first: OK when the
  // sequence is sealed; NOT_FOUND or NOT_SEALED when `deadline` passed; WRONG_STATE when it was
  // aborted; DRAINING. `core` must outlive this object's waiters. Returns the id for Cancel. Errors:
  // CAPACITY, DRAINING.
  absl::StatusOr<uint64_t> Add(KvCore& core, std::string name, Identity identity, Found found,
                               MonotonicTime deadline, Done done) ABSL_LOCKS_EXCLUDED(mutex_);
  // True: `done` was not called and never will be.
  bool Cancel(uint64_t waiter) ABSL_LOCKS_EXCLUDED(mutex_);
  // Something was sealed or aborted, or draining has begun: looks at all waiters soon.
  void Notify() ABSL_LOCKS_EXCLUDED(mutex_);

  size_t size() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Waiter {
    KvCore* core = nullptr;
    std::string name;
    Identity identity;
    MonotonicTime deadline;
    Done done;
    bool seen_open = false;
  };

  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  // Ids to look at now; empty if there is nothing to do before *wake.
  std::vector<uint64_t> TakeDue(MonotonicTime now, MonotonicTime* wake)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Look(uint64_t id) ABSL_LOCKS_EXCLUDED(mutex_);
  // False when it was gone.
  bool Remove(uint64_t id, Waiter* out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint32_t max_waiters_;

  mutable Mutex mutex_;
  CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool look_at_all_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  MonotonicTime next_sweep_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, Waiter> waiters_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<MonotonicTime, uint64_t>> by_deadline_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> new_ ABSL_GUARDED_BY(mutex_);  // not looked at yet

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace oasiskv::server
