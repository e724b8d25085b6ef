// Everything that a working set keeps in device memory and in pinned memory of fixed addresses.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "client/working_set/cuda/kernels/kernels.h"
#include "client/working_set/cuda/kernels/layout.h"
#include "client/working_set/cuda/kernels/remote.h"
#include "common/cuda/handles.h"
#include "oasiskv/gpu_working_set.h"

namespace oasiskv {

// INVALID_ARGUMENT naming the field for what the kernels cannot do.
absl::StatusOr<gpu::Shape> ShapeOf(const GpuWorkingSetOptions& options);

// Thread contract: one thread.
//
// Cuts one allocation into pieces on boundaries of 256 bytes. The first pass, without a base,
// counts; the second hands out.
class Carver {
 public:
  static uint64_t Align(uint64_t bytes) { return (bytes + 255) / 256 * 256; }
  template <typename T>
  T* Cut(uint64_t items) {
    auto* const at = reinterpret_cast<T*>(base_ + used_);
    used_ += Align(items * sizeof(T));
    return base_ == nullptr ? nullptr : at;
  }
  uint64_t used() const { return used_; }
  void Begin(std::byte* base) {
    base_ = base;
    used_ = 0;
  }

 private:
  std::byte* base_ = nullptr;
  uint64_t used_ = 0;
};

// How one layer lies in device memory, for the working set and for whoever drives its kernels one
// by one. Each cuts its part; what a mode alone needs (use, entered) is not among the layer's.
void CutLayer(Carver& carve, const gpu::Shape& shape, gpu::LayerMemory& layer);
gpu::Plan CutPlan(Carver& carve, uint64_t capacity, uint64_t row_heads, bool resolve = false);
gpu::Rows CutRows(Carver& carve, uint32_t max_rows);
// Empties every page and prediction of a layer that was cut.
absl::Status ClearLayer(const gpu::Shape& shape, const gpu::LayerMemory& layer);
// Summaries of one slot, and the pages of all slots, where the engine brings none: in one block,
// entries as frames have them.
int64_t SummariesSlotStride(const gpu::Shape& shape);
uint64_t OwnPageBytes(const gpu::Shape& shape);
gpu::Pages OwnPages(const gpu::Shape& shape, std::byte* pool);

// Thread contract: hands out addresses only.
class DeviceMemory {
 public:
  // Allocates on the current device. CAPACITY naming what did not fit.
  static absl::StatusOr<DeviceMemory> Create(const GpuWorkingSetOptions& options,
                                             const gpu::Shape& shape);

  std::vector<gpu::LayerMemory> layers;
  std::vector<gpu::Plan> plans;  // by layer
  gpu::Rows rows;
  gpu::HeadSource* sources = nullptr;     // [slot][head]
  gpu::SlotCounters* counters = nullptr;  // [slot]
  gpu::ErrorWord* error = nullptr;        // pinned
  // kExact only.
  gpu::Plan resolve_plan;
  int32_t* truth = nullptr;  // [slot][head][K]; also SampleAgreement's
  float* truth_scores = nullptr;
  gpu::Resolution resolution;
  // By layer, and the last for Resolve.
  std::vector<gpu::Box> boxes;
  // Frame addresses of a slot whose source lies in this host's memory.
  uint64_t* Frames(uint32_t slot) const { return frames_ + uint64_t{slot} * max_blocks_; }

 private:
  DeviceMemory() = default;

  uint64_t* frames_ = nullptr;
  uint64_t max_blocks_ = 0;
  std::vector<cuda::DeviceBuffer> device_;
  std::vector<cuda::PinnedBuffer> pinned_;
};

}  // namespace oasiskv
