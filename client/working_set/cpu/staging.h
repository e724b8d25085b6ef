// Buffers that fetches write into before their bytes may enter a page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "common/mutex.h"

namespace oasiskv {

// Thread contract: safe for concurrent use; outlives its buffers.
//
// Keeps as many buffers as were ever in use at one time, so that a steady state allocates nothing.
class StagingPool {
 public:
  // At least `bytes` bytes in `data`, contents undefined; goes back to the pool by itself.
  struct Memory {
    std::unique_ptr<std::byte[]> data;
    uint64_t size = 0;
  };
  struct GiveBack {
    StagingPool* pool = nullptr;
    void operator()(Memory* memory) const {
      MutexLock lock(pool->mutex_);
      pool->idle_.emplace_back(memory);
    }
  };
  using Buffer = std::unique_ptr<Memory, GiveBack>;

  Buffer Take(uint64_t bytes) {
    std::unique_ptr<Memory> memory;
    {
      MutexLock lock(mutex_);
      if (!idle_.empty()) {
        memory = std::move(idle_.back());
        idle_.pop_back();
      }
    }
    if (memory == nullptr) memory = std::make_unique<Memory>();
    if (memory->size < bytes) *memory = {std::unique_ptr<std::byte[]>(new std::byte[bytes]), bytes};
    return Buffer(memory.release(), GiveBack{this});
  }

 private:
  Mutex mutex_;
  std::vector<std::unique_ptr<Memory>> idle_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace oasiskv
