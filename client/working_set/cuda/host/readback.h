// What lies in device memory, copied for the host: counters, errors, maps, pages, plans.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/working_set/cuda/host/device_memory.h"
#include "client/working_set/cuda/kernels/kernels.h"
#include "oasiskv/gpu_working_set.h"

namespace oasiskv {

// What the device has counted for `slot`; waits for `stream`.
absl::StatusOr<WorkingSetStats> ReadCounters(const DeviceMemory& memory, const gpu::Shape& shape,
                                             uint32_t slot, cudaStream_t stream);

// OK while the error word is empty.
absl::Status ErrorOf(gpu::ErrorWord& word, const GpuWorkingSetOptions& options);

// These block the calling thread; nothing may be running on the slot's layer.
absl::StatusOr<GpuSnapshot> ReadSnapshot(const gpu::LayerMemory& memory, const gpu::Shape& shape,
                                         uint32_t slot);
absl::StatusOr<std::vector<GpuPlanItem>> ReadPlan(const gpu::Plan& plan);

}  // namespace oasiskv
