#include "common/fabric/write_gate.h"

namespace oasiskv::fabric {

bool WriteGate::Enter(GrantId grant) {
  MutexLock lock(mutex_);
  if (closed_.contains(grant)) return false;
  ++inside_[grant];
  return true;
}

void WriteGate::Leave(GrantId grant) {
  MutexLock lock(mutex_);
  auto it = inside_.find(grant);
  if (--it->second > 0) return;
  inside_.erase(it);
  left_.NotifyAll();
}

bool WriteGate::Close(GrantId grant) {
  MutexLock lock(mutex_);
  const bool first = closed_.insert(grant).second;
  if (first) {
    closed_order_.push_back(grant);
    if (closed_order_.size() > max_closed_) {
      closed_.erase(closed_order_.front());
      closed_order_.pop_front();
    }
  }
  while (inside_.contains(grant)) left_.Wait(mutex_);
  return first;
}

}  // namespace oasiskv::fabric
