// Buffers that fetches write into before their bytes may enter a page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "common/mutex.h"

namespace oasiskv {

class StagingPool;

// Thread contract: used by one thread at a time; a move-only owner that gives its buffer back.
class StagingBuffer {
 public:
  StagingBuffer() = default;
  StagingBuffer(StagingBuffer&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)),
        bytes_(std::move(other.bytes_)),
        size_(std::exchange(other.size_, 0)) {}
  StagingBuffer& operator=(StagingBuffer&& other) noexcept {
    if (this != &other) {
      Reset();
      pool_ = std::exchange(other.pool_, nullptr);
      bytes_ = std::move(other.bytes_);
      size_ = std::exchange(other.size_, 0);
    }
    return *this;
  }
  ~StagingBuffer() { Reset(); }

  std::byte* data() const { return bytes_.get(); }
  void Reset();

 private:
  friend class StagingPool;
  StagingPool* pool_ = nullptr;  // outlives the buffer
  std::unique_ptr<std::byte[]> bytes_;
  uint64_t size_ = 0;
};

// Thread contract: safe for concurrent use; outlives its buffers.
//
// Keeps as many buffers as were ever in use at one time, so that a steady state allocates nothing.
class StagingPool {
 public:
  // At least `bytes` bytes, contents undefined.
  StagingBuffer Take(uint64_t bytes);

 private:
  friend class StagingBuffer;
  void GiveBack(std::unique_ptr<std::byte[]> bytes, uint64_t size);

  Mutex mutex_;
  std::vector<std::pair<uint64_t, std::unique_ptr<std::byte[]>>> idle_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace oasiskv
