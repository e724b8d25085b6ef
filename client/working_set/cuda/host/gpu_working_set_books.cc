// What can be asked of a working set: views, counts, errors, copies.
#include <algorithm>
#include <atomic>

#include "absl/strings/str_format.h"
#include "client/working_set/cuda/host/gpu_working_set_impl.h"
#include "client/working_set/stats_book.h"
#include "common/cuda/status.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv {

absl::StatusOr<GpuLayerView> GpuWorkingSetImpl::View(LayerIndex layer) const {
  OASISKV_RETURN_IF_ERROR(CheckLayer("View", layer));
  const gpu::LayerMemory& mem = memory_.layers[layer.value()];
  return GpuLayerView{.pages = {.k = mem.pages.k,
                                .v = mem.pages.v,
                                .page_stride = mem.pages.page_stride,
                                .head_stride = mem.pages.head_stride,
                                .token_stride = mem.pages.token_stride,
                                .table = mem.pages.table},
                      .map = mem.map,
                      .state = reinterpret_cast<const GpuSlotState*>(mem.state),
                      .predicted = mem.predicted};
}

absl::StatusOr<WorkingSetStats> GpuWorkingSetImpl::ReadCounters(uint32_t slot) {
  gpu::SlotCounters counters;
  OASISKV_CUDA_RETURN(cudaMemcpyAsync(&counters, memory_.counters + slot, sizeof(counters),
                                      cudaMemcpyDeviceToHost, admit_.get()));
  OASISKV_CUDA_RETURN(cudaStreamSynchronize(admit_.get()));
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
  stats.bytes_moved = (counters.admitted + counters.demanded) * shape_.entry_bytes;
  stats.bytes_used = counters.used * shape_.entry_bytes;
  stats.admission_bytes = slots_[slot]->admission_bytes;
  stats.agreement_samples = counters.agreement_samples;
  if (counters.agreement_of > 0) {
    stats.agreement_sum = static_cast<double>(counters.agreement_common) /
                          static_cast<double>(counters.agreement_of) *
                          static_cast<double>(counters.agreement_samples);
  }
  if (slots_[slot]->remote) stats.degraded = proxy_->degraded(slot);
  return stats;
}

absl::StatusOr<WorkingSetStats> GpuWorkingSetImpl::RequestStats(RequestSlot slot) {
  OASISKV_RETURN_IF_ERROR(CheckSlot("RequestStats", slot));
  const cuda::DeviceScope scope(options_.device);
  return ReadCounters(slot.value());
}

absl::StatusOr<WorkingSetStats> GpuWorkingSetImpl::Stats() {
  const cuda::DeviceScope scope(options_.device);
  WorkingSetStats total = left_;
  for (uint32_t s = 0; s < slots_.size(); ++s) {
    if (slots_[s] == nullptr) continue;
    OASISKV_ASSIGN_OR_RETURN(const WorkingSetStats stats, ReadCounters(s));
    AddStats(stats, &total);
  }
  return total;
}

absl::Status GpuWorkingSetImpl::Error() const {
  const auto code = static_cast<gpu::ErrorKind>(
      std::atomic_ref<uint32_t>(memory_.error->code).load(std::memory_order_acquire));
  const uint32_t layer = memory_.error->layer, slot = memory_.error->slot,
                 detail = memory_.error->detail;
  switch (code) {
    case gpu::ErrorKind::kNone:
      return proxy_ == nullptr ? absl::OkStatus() : proxy_->status();
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
                          slot, layer, detail, options_.base.late_deadline.count() / 1000));
    case gpu::ErrorKind::kMissing:
      return MakeError(ErrorCode::kCapacity,
                       absl::StrFormat("slot %d, layer %d: block %d has no frame: more tokens than "
                                       "max_new_tokens (%d) were appended (raise it), or a row "
                                       "named a slot that had left",
                                       slot, layer, detail, options_.max_new_tokens));
    case gpu::ErrorKind::kOverflow:
      return MakeError(ErrorCode::kCapacity,
                       absl::StrFormat("slot %d, layer %d: a token was not stored: the local block "
                                       "was full (AttentionDone and Wait promote it), or the "
                                       "request holds max_blocks (%d) blocks",
                                       slot, layer, options_.base.max_blocks));
  }
  return MakeError(ErrorCode::kInternal,
                   absl::StrFormat("device error %d", static_cast<uint32_t>(code)));
}

void GpuWorkingSetImpl::ClearError() {
  std::atomic_ref<uint32_t>(memory_.error->code).store(0, std::memory_order_release);
  if (proxy_ != nullptr) proxy_->ClearStatus();
}

absl::StatusOr<GpuSnapshot> GpuWorkingSetImpl::Snapshot(LayerIndex layer, RequestSlot slot) {
  OASISKV_RETURN_IF_ERROR(CheckLayer("Snapshot", layer));
  OASISKV_RETURN_IF_ERROR(CheckSlot("Snapshot", slot));
  const cuda::DeviceScope scope(options_.device);
  OASISKV_RETURN_IF_ERROR(Synchronize());
  const gpu::LayerMemory& mem = memory_.layers[layer.value()];
  const size_t each = size_t{shape_.kv_heads} * shape_.resident, at = slot.value() * each;
  GpuSnapshot out;
  out.map.resize(each);
  out.stamps.resize(each);
  out.predicted.resize(each);
  OASISKV_CUDA_RETURN(
      cudaMemcpy(out.map.data(), mem.map + at, each * sizeof(int32_t), cudaMemcpyDeviceToHost));
  OASISKV_CUDA_RETURN(cudaMemcpy(out.stamps.data(), mem.stamps + at, each * sizeof(uint64_t),
                                 cudaMemcpyDeviceToHost));
  OASISKV_CUDA_RETURN(cudaMemcpy(out.predicted.data(), mem.predicted + at, each * sizeof(int32_t),
                                 cudaMemcpyDeviceToHost));
  OASISKV_CUDA_RETURN(
      cudaMemcpy(&out.state, mem.state + slot.value(), sizeof(out.state), cudaMemcpyDeviceToHost));
  OASISKV_RETURN_IF_ERROR(CopyPages(layer, slot, &out.pages));
  return out;
}

absl::Status GpuWorkingSetImpl::CopyPages(LayerIndex layer, RequestSlot slot,
                                          std::vector<std::byte>* out) {
  const gpu::Pages& pages = memory_.layers[layer.value()].pages;
  const uint32_t of_slot = shape_.resident + 1;
  std::vector<int32_t> physical(of_slot);
  if (pages.table == nullptr) {
    for (uint32_t p = 0; p < of_slot; ++p) {
      physical[p] = static_cast<int32_t>(slot.value() * of_slot + p);
    }
  } else {
    OASISKV_CUDA_RETURN(cudaMemcpy(physical.data(), pages.table + size_t{slot.value()} * of_slot,
                                   of_slot * sizeof(int32_t), cudaMemcpyDeviceToHost));
  }
  out->resize(size_t{shape_.kv_heads} * of_slot * shape_.entry_bytes);
  std::byte* to = out->data();
  const uint32_t half = shape_.block_tokens * shape_.key_bytes;
  if (pages.table == nullptr && pages.token_stride == shape_.key_bytes) {
    // A page's tokens follow each other and so do the pages: one copy a head instead of one a page.
    for (uint32_t h = 0; h < shape_.kv_heads; ++h, to += size_t{of_slot} * shape_.entry_bytes) {
      const int64_t offset = physical[0] * pages.page_stride + h * pages.head_stride;
      OASISKV_CUDA_RETURN(cudaMemcpy2D(to, shape_.entry_bytes, pages.k + offset, pages.page_stride,
                                       half, of_slot, cudaMemcpyDeviceToHost));
      if (shape_.latent) continue;
      OASISKV_CUDA_RETURN(cudaMemcpy2D(to + half, shape_.entry_bytes, pages.v + offset,
                                       pages.page_stride, half, of_slot, cudaMemcpyDeviceToHost));
    }
    return absl::OkStatus();
  }
  for (uint32_t h = 0; h < shape_.kv_heads; ++h) {
    for (uint32_t p = 0; p < of_slot; ++p, to += shape_.entry_bytes) {
      const int64_t offset = physical[p] * pages.page_stride + h * pages.head_stride;
      OASISKV_CUDA_RETURN(cudaMemcpy2D(to, shape_.key_bytes, pages.k + offset, pages.token_stride,
                                       shape_.key_bytes, shape_.block_tokens,
                                       cudaMemcpyDeviceToHost));
      if (shape_.latent) continue;
      OASISKV_CUDA_RETURN(cudaMemcpy2D(to + half, shape_.key_bytes, pages.v + offset,
                                       pages.token_stride, shape_.key_bytes, shape_.block_tokens,
                                       cudaMemcpyDeviceToHost));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<GpuPlanItem>> GpuWorkingSetImpl::LastPlan(LayerIndex layer) {
  OASISKV_RETURN_IF_ERROR(CheckLayer("LastPlan", layer));
  const cuda::DeviceScope scope(options_.device);
  OASISKV_RETURN_IF_ERROR(Synchronize());
  const gpu::Plan& plan = memory_.plans[layer.value()];
  uint32_t count = 0;
  OASISKV_CUDA_RETURN(cudaMemcpy(&count, plan.count, sizeof(count), cudaMemcpyDeviceToHost));
  std::vector<GpuPlanItem> items(std::min(count, plan.capacity));
  OASISKV_CUDA_RETURN(cudaMemcpy(items.data(), plan.items, items.size() * sizeof(GpuPlanItem),
                                 cudaMemcpyDeviceToHost));
  return items;
}

}  // namespace oasiskv
