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
  class Carver;
  DeviceMemory() = default;

  uint64_t* frames_ = nullptr;
  uint64_t max_blocks_ = 0;
  std::vector<cuda::DeviceBuffer> device_;
  std::vector<cuda::PinnedBuffer> pinned_;
};

}  // namespace oasiskv
