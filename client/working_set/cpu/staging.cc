#include "client/working_set/cpu/staging.h"

namespace oasiskv {

void StagingBuffer::Reset() {
  if (pool_ != nullptr && bytes_ != nullptr) pool_->GiveBack(std::move(bytes_), size_);
  pool_ = nullptr;
  size_ = 0;
}

StagingBuffer StagingPool::Take(uint64_t bytes) {
  StagingBuffer buffer;
  buffer.pool_ = this;
  {
    MutexLock lock(mutex_);
    if (!idle_.empty()) {
      buffer.size_ = idle_.back().first;
      buffer.bytes_ = std::move(idle_.back().second);
      idle_.pop_back();
    }
  }
  if (buffer.size_ < bytes) {
    buffer.bytes_.reset(new std::byte[bytes]);
    buffer.size_ = bytes;
  }
  return buffer;
}

void StagingPool::GiveBack(std::unique_ptr<std::byte[]> bytes, uint64_t size) {
  MutexLock lock(mutex_);
  idle_.emplace_back(size, std::move(bytes));
}

}  // namespace oasiskv
