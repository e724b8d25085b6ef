// Counters of every request and of the whole working set.
#pragma once

#include <cstdint>
#include <vector>

#include "client/working_set/options.h"
#include "common/mutex.h"
#include "oasiskv/ids.h"
#include "oasiskv/working_set.h"

namespace oasiskv {

// Thread contract: safe for concurrent use.
class SlotStats {
 public:
  explicit SlotStats(uint32_t slots) : of_slot_(slots) {}

  void Add(RequestSlot slot, const WorkingSetStats& delta) {
    MutexLock lock(mutex_);
    AddStats(delta, &total_);
    AddStats(delta, &of_slot_[slot.value()]);
  }
  // A new request takes the slot; the total stays.
  void Reset(RequestSlot slot) {
    MutexLock lock(mutex_);
    of_slot_[slot.value()] = WorkingSetStats();
  }
  WorkingSetStats Total() const {
    MutexLock lock(mutex_);
    return total_;
  }
  // Zeros for a slot that does not exist.
  WorkingSetStats OfSlot(RequestSlot slot) const {
    MutexLock lock(mutex_);
    return slot.value() < of_slot_.size() ? of_slot_[slot.value()] : WorkingSetStats();
  }

 private:
  mutable Mutex mutex_;
  WorkingSetStats total_ ABSL_GUARDED_BY(mutex_);
  std::vector<WorkingSetStats> of_slot_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace oasiskv
