#include "client/working_set/cuda/host/readback.h"

#include <algorithm>
#include <atomic>
#include <cstddef>

#include "absl/strings/str_format.h"
#include "common/cuda/status.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv {
namespace {

absl::Status CopyPages(const gpu::Pages& pages, const gpu::Shape& shape, uint32_t slot,
                       std::vector<std::byte>* out) {
  const uint32_t of_slot = shape.resident + 1;
  std::vector<int32_t> physical(of_slot);
  if (pages.table == nullptr) {
    for (uint32_t p = 0; p < of_slot; ++p) {
      physical[p] = static_cast<int32_t>(slot * of_slot + p);
    }
  } else {
    OASISKV_CUDA_RETURN(cudaMemcpy(physical.data(), pages.table + size_t{slot} * of_slot,
                                   of_slot * sizeof(int32_t), cudaMemcpyDeviceToHost));
  }
  out->resize(size_t{shape.kv_heads} * of_slot * shape.entry_bytes);
  std::byte* to = out->data();
  const uint32_t half = shape.block_tokens * shape.key_bytes;
  if (pages.table == nullptr && pages.token_stride == shape.key_bytes) {
    // The tokens of a page and the pages themselves are contiguous: one copy per head, not per page.
    for (uint32_t h = 0; h < shape.kv_heads; ++h, to += size_t{of_slot} * shape.entry_bytes) {
      const int64_t offset = physical[0] * pages.page_stride + h * pages.head_stride;
      OASISKV_CUDA_RETURN(cudaMemcpy2D(to, shape.entry_bytes, pages.k + offset, pages.page_stride,
                                       half, of_slot, cudaMemcpyDeviceToHost));
      if (shape.latent) continue;
      OASISKV_CUDA_RETURN(cudaMemcpy2D(to + half, shape.entry_bytes, pages.v + offset,
                                       pages.page_stride, half, of_slot, cudaMemcpyDeviceToHost));
    }
    return absl::OkStatus();
  }
  for (uint32_t h = 0; h < shape.kv_heads; ++h) {
    for (uint32_t p = 0; p < of_slot; ++p, to += shape.entry_bytes) {
      const int64_t offset = physical[p] * pages.page_stride + h * pages.head_stride;
      OASISKV_CUDA_RETURN(cudaMemcpy2D(to, shape.key_bytes, pages.k + offset, pages.token_stride,
                                       shape.key_bytes, shape.block_tokens,
                                       cudaMemcpyDeviceToHost));
      if (shape.latent) continue;
      OASISKV_CUDA_RETURN(cudaMemcpy2D(to + half, shape.key_bytes, pages.v + offset,
                                       pages.token_stride, shape.key_bytes, shape.block_tokens,
                                       cudaMemcpyDeviceToHost));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<WorkingSetStats> ReadCounters(const DeviceMemory& memory, const gpu::Shape& shape,
                                             uint32_t slot, cudaStream_t stream) {
  gpu::SlotCounters counters;
  OASISKV_CUDA_RETURN(cudaMemcpyAsync(&counters, memory.counters + slot, sizeof(counters),
                                      cudaMemcpyDeviceToHost, stream));
  OASISKV_CUDA_RETURN(cudaStreamSynchronize(stream));
  WorkingSetStats stats;
  stats.steps = counters.steps;
  stats.predicted = counters.predicted;
  stats.hit = counters.hit;
  stats.admitted = counters.admitted;
  stats.promoted = counters.promoted;
  stats.refused_by_cap = counters.refused;
  stats.late = counters.late;
  stats.skipped = counters.skipped;
  stats.demanded = counters.demanded;
  stats.bytes_moved = (counters.admitted + counters.demanded) * shape.entry_bytes;
  stats.bytes_used = counters.used * shape.entry_bytes;
  stats.agreement_samples = counters.agreement_samples;
  if (counters.agreement_of > 0) {
    stats.agreement_sum = static_cast<double>(counters.agreement_common) /
                          static_cast<double>(counters.agreement_of) *
                          static_cast<double>(counters.agreement_samples);
  }
  return stats;
}

absl::Status ErrorOf(gpu::ErrorWord& word, const GpuWorkingSetOptions& options) {
  const auto code = static_cast<gpu::ErrorKind>(
      std::atomic_ref<uint32_t>(word.code).load(std::memory_order_acquire));
  const uint32_t layer = word.layer, slot = word.slot, detail = word.detail;
  switch (code) {
    case gpu::ErrorKind::kNone:
      return absl::OkStatus();
    case gpu::ErrorKind::kStale:
      return MakeError(ErrorCode::kStale,
                       absl::StrFormat("slot %d, layer %d, head %d: the grant word no longer held "
                                       "the epoch after the read; the pages were emptied. Leave, "
                                       "attach again",
                                       slot, layer, detail));
    case gpu::ErrorKind::kTimeout:
      return MakeError(
          ErrorCode::kDeadlineExceeded,
          absl::StrFormat("slot %d, layer %d, block %d had not come when "
                          "late_deadline of %d us had passed",
                          slot, layer, detail, options.base.late_deadline.count() / 1000));
    case gpu::ErrorKind::kMissing:
      return MakeError(ErrorCode::kCapacity,
                       absl::StrFormat("slot %d, layer %d: block %d has no frame: more tokens than "
                                       "max_new_tokens (%d) were appended (raise it), or a row "
                                       "named a slot that had left",
                                       slot, layer, detail, options.max_new_tokens));
    case gpu::ErrorKind::kOverflow:
      return MakeError(ErrorCode::kCapacity,
                       absl::StrFormat("slot %d, layer %d: a token was not stored: the local block "
                                       "was full (AttentionDone and Wait promote it), or the "
                                       "request holds max_blocks (%d) blocks",
                                       slot, layer, options.base.max_blocks));
  }
  return MakeError(ErrorCode::kInternal,
                   absl::StrFormat("device error %d", static_cast<uint32_t>(code)));
}

absl::StatusOr<GpuSnapshot> ReadSnapshot(const gpu::LayerMemory& memory, const gpu::Shape& shape,
                                         uint32_t slot) {
  const size_t each = size_t{shape.kv_heads} * shape.resident, at = slot * each;
  GpuSnapshot out;
  out.map.resize(each);
  out.stamps.resize(each);
  out.predicted.resize(each);
  OASISKV_CUDA_RETURN(
      cudaMemcpy(out.map.data(), memory.map + at, each * sizeof(int32_t), cudaMemcpyDeviceToHost));
  OASISKV_CUDA_RETURN(cudaMemcpy(out.stamps.data(), memory.stamps + at, each * sizeof(uint64_t),
                                 cudaMemcpyDeviceToHost));
  OASISKV_CUDA_RETURN(cudaMemcpy(out.predicted.data(), memory.predicted + at,
                                 each * sizeof(int32_t), cudaMemcpyDeviceToHost));
  OASISKV_CUDA_RETURN(
      cudaMemcpy(&out.state, memory.state + slot, sizeof(out.state), cudaMemcpyDeviceToHost));
  OASISKV_RETURN_IF_ERROR(CopyPages(memory.pages, shape, slot, &out.pages));
  return out;
}

absl::StatusOr<std::vector<GpuPlanItem>> ReadPlan(const gpu::Plan& plan) {
  uint32_t count = 0;
  OASISKV_CUDA_RETURN(cudaMemcpy(&count, plan.count, sizeof(count), cudaMemcpyDeviceToHost));
  std::vector<GpuPlanItem> items(std::min(count, plan.capacity));
  OASISKV_CUDA_RETURN(cudaMemcpy(items.data(), plan.items, items.size() * sizeof(GpuPlanItem),
                                 cudaMemcpyDeviceToHost));
  return items;
}

}  // namespace oasiskv
