#include "client/working_set/cpu/slot_stats.h"

#include "client/working_set/stats.h"

namespace oasiskv {

void SlotStats::Add(RequestSlot slot, const WorkingSetStats& delta) {
  MutexLock lock(mutex_);
  AddStats(delta, &total_);
  AddStats(delta, &of_slot_[slot.value()]);
}

void SlotStats::Reset(RequestSlot slot) {
  MutexLock lock(mutex_);
  of_slot_[slot.value()] = WorkingSetStats();
}

WorkingSetStats SlotStats::Total() const {
  MutexLock lock(mutex_);
  return total_;
}

WorkingSetStats SlotStats::OfSlot(RequestSlot slot) const {
  MutexLock lock(mutex_);
  return slot.value() < of_slot_.size() ? of_slot_[slot.value()] : WorkingSetStats();
}

}  // namespace oasiskv
