#include "client/working_set/cuda/host/host_frames.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv {
namespace {

constexpr uint64_t kSlabBytes = uint64_t{64} << 20;

}  // namespace

absl::Status HostFrames::Reserve(uint64_t units) {
  while (units_ < reserved_ + units) {
    const uint64_t missing = reserved_ + units - units_;
    const uint64_t here = std::min(missing, std::max<uint64_t>(kSlabBytes / unit_bytes_, 1));
    const uint64_t bytes = here * unit_bytes_;
    if (budget_->limit != 0 && budget_->used + bytes > budget_->limit) {
      return MakeError(
          ErrorCode::kCapacity,
          absl::StrFormat("the request's blocks need %d more bytes of pinned host memory; "
                          "GpuWorkingSetOptions.max_host_bytes is %d, of which %d are pinned",
                          missing * unit_bytes_, budget_->limit, budget_->used));
    }
    OASISKV_ASSIGN_OR_RETURN(cuda::PinnedBuffer slab,
                             cuda::PinnedBuffer::Create(bytes, "host memory for blocks"));
    budget_->used += bytes;
    units_ += here;
    {
      MutexLock lock(mutex_);
      for (uint64_t i = 0; i < here; ++i) idle_.push_back(slab.data() + i * unit_bytes_);
    }
    slabs_.push_back(std::move(slab));
  }
  reserved_ += units;
  return absl::OkStatus();
}

std::byte* HostFrames::Take() {
  MutexLock lock(mutex_);
  if (idle_.empty()) return nullptr;
  std::byte* const unit = idle_.back();
  idle_.pop_back();
  return unit;
}

void HostFrames::Give(std::byte* unit) {
  MutexLock lock(mutex_);
  idle_.push_back(unit);
}

}  // namespace oasiskv
