// Counters of every request and of the whole working set.
#pragma once

#include <cstdint>
#include <vector>

#include "common/mutex.h"
#include "oasiskv/ids.h"
#include "oasiskv/working_set.h"

namespace oasiskv {

// Thread contract: safe for concurrent use.
class SlotStats {
 public:
  explicit SlotStats(uint32_t slots) : of_slot_(slots) {}

  void Add(RequestSlot slot, const WorkingSetStats& delta);
  void Reset(RequestSlot slot);  // a new request takes the slot; the total stays
  WorkingSetStats Total() const;
  WorkingSetStats OfSlot(RequestSlot slot) const;  // zeros for a slot that does not exist

 private:
  mutable Mutex mutex_;
  WorkingSetStats total_ ABSL_GUARDED_BY(mutex_);
  std::vector<WorkingSetStats> of_slot_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace oasiskv
