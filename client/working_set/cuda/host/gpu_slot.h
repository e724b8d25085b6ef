// What a request holds while it has a slot, what slots share, and how a request gets one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/working_set/cuda/host/device_memory.h"
#include "client/working_set/cuda/host/host_frames.h"
#include "client/working_set/cuda/kernels/kernels.h"
#include "common/cuda/handles.h"
#include "common/cuda/host_registration.h"
#include "oasiskv/gpu_working_set.h"

namespace oasiskv {

// Memory that outlives the requests: pinned units by size, frame tables by slot, registrations.
//
// Thread contract: used by the driving thread (the units of a HostFrames also by the proxy).
struct GpuSlotPool {
  HostBudget budget;
  std::map<uint64_t, std::unique_ptr<HostFrames>> frames;    // by unit size
  std::vector<cuda::PinnedBuffer> remote_tables;             // [slot]: [layer][max_blocks]
  std::vector<std::vector<cuda::DeviceBuffer>> part_tables;  // [slot]: of parts beyond the first
  std::vector<std::shared_ptr<const cuda::HostRegistration>> registrations;
  // Scratch of an admission; there is one at a time.
  cuda::PinnedBuffer staging;
  cuda::DeviceBuffer plan;  // items [layer][head][K], then one count per layer
  gpu::ErrorWord* error = nullptr;
  cuda::PinnedBuffer error_memory;

  absl::Status Create(const gpu::Shape& shape);
  HostFrames& Units(uint64_t bytes);
};

// Thread contract: used by the driving thread.
//
// Destroying it gives units and registrations back; the device must have done with the slot.
struct GpuSlot {
  std::shared_ptr<EntrySource> source;
  bool remote = false;
  uint64_t* remote_table = nullptr;  // pinned
  HostFrames* remote_units = nullptr;
  std::vector<std::pair<HostFrames*, std::byte*>> own;  // decoded blocks, and the first fetched
  std::vector<std::pair<HostFrames*, uint64_t>> reserved;
  std::vector<std::shared_ptr<const cuda::HostRegistration>> registrations;
  uint64_t admission_bytes = 0;

  ~GpuSlot();
};

struct AdmissionContext {
  const GpuWorkingSetOptions& options;
  const gpu::Shape& shape;
  DeviceMemory& memory;
  GpuSlotPool& pool;
  cudaStream_t stream;
};

// Makes the slot's frame tables empty, so that a row that still names it by mistake reads
// nothing.
absl::Status ForgetSlot(const AdmissionContext& context, uint32_t slot);

// Fills slot `slot` from `source`, as WorkingSet::Admit does; returns when the device has it all.
// After an error the slot is free, as before.
absl::StatusOr<std::unique_ptr<GpuSlot>> AdmitToSlot(const AdmissionContext& context,
                                                     std::shared_ptr<EntrySource> source,
                                                     uint32_t slot);

}  // namespace oasiskv
