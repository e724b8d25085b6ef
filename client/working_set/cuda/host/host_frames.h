// Pinned host memory in units of one size, for blocks that were fetched or decoded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "common/cuda/handles.h"
#include "common/mutex.h"

namespace oasiskv {

// How much may be pinned in all.
//
// Thread contract: used by the driving thread.
struct HostBudget {
  uint64_t limit = 0;  // 0: none
  uint64_t used = 0;
};

// Thread contract: Reserve and Release by the driving thread; Take and Give by any.
//
// Pinning takes the driver's time and may wait for the device, so it happens at Reserve, never at
// Take: a step that waits for a block must not wait for memory. What was pinned once is kept.
class HostFrames {
 public:
  HostFrames(uint64_t unit_bytes, HostBudget* budget) : unit_bytes_(unit_bytes), budget_(budget) {}

  // From now on `units` more can be taken. CAPACITY naming the limit and the field.
  absl::Status Reserve(uint64_t units);
  void Release(uint64_t units) { reserved_ -= units; }
  // Null when more is taken than was reserved and nothing is idle.
  std::byte* Take();
  void Give(std::byte* unit);
  uint64_t unit_bytes() const { return unit_bytes_; }

 private:
  const uint64_t unit_bytes_;
  HostBudget* const budget_;
  std::vector<cuda::PinnedBuffer> slabs_;
  uint64_t reserved_ = 0, units_ = 0;
  Mutex mutex_;
  std::vector<std::byte*> idle_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace oasiskv
