// Which writer grants of one connection may still write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "common/mutex.h"
#include "oasiskv/ids.h"

namespace oasiskv::fabric {

// Thread contract: safe for concurrent use.
//
// A write enters, copies and leaves; Close(grant) lets no more in and returns when the last has
// left. Memory is bounded: the gate remembers the newest `max_closed` closed grants. Grant ids are
// never given out twice, and long before so many grants came and went the daemon has changed the
// word of the oldest, which refuses its writes too.
class WriteGate {
 public:
  explicit WriteGate(size_t max_closed = 65'536) : max_closed_(max_closed) {}

  // Thread contract: not safe for concurrent use. Open while it lives, if the gate let it in.
  class Pass {
   public:
    Pass(WriteGate& gate, GrantId grant) : gate_(gate), grant_(grant), inside_(gate.Enter(grant)) {}
    ~Pass() {
      if (inside_) gate_.Leave(grant_);
    }
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;
    explicit operator bool() const { return inside_; }

   private:
    WriteGate& gate_;
    const GrantId grant_;
    const bool inside_;
  };

  // False when `grant` was closed. Otherwise the caller is inside until it calls Leave; a Pass does
  // both for writes that end where they began.
  bool Enter(GrantId grant);
  void Leave(GrantId grant);
  // True for the first caller of a grant.
  bool Close(GrantId grant);

 private:
  const size_t max_closed_;
  Mutex mutex_;
  CondVar left_;
  absl::flat_hash_map<GrantId, uint32_t> inside_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<GrantId> closed_ ABSL_GUARDED_BY(mutex_);
  std::deque<GrantId> closed_order_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace oasiskv::fabric
