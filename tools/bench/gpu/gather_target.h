// What gather reads and what it fills.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/working_set/cuda/kernels/kernels.h"
#include "common/cuda/host_registration.h"
#include "tools/bench/rig/device.h"
#include "tools/bench/rig/device_layer.h"

namespace oasiskv::bench {

// Thread contract: one thread. A memfd as the daemon's arena is one: normal pages, shared mapping;
// filled, and registered for the GPU.
struct HostMemory {
  static absl::StatusOr<std::unique_ptr<HostMemory>> Make(uint64_t bytes);

  std::byte* data = nullptr;
  uint64_t bytes = 0;
  std::shared_ptr<const cuda::HostRegistration> registration;
};

// Thread contract: one thread. Pages for the items of a launch, plans of random entries.
struct GatherTarget {
  static constexpr uint32_t kPlans = 4;  // each another set of random entries, used in turn

  static absl::StatusOr<std::unique_ptr<GatherTarget>> Make(const HostMemory& host,
                                                            uint64_t entry_bytes, uint32_t items);
  absl::Status Launch(uint32_t number, const gpu::GatherOptions& options, cudaStream_t stream);
  // Some of the pages that plan 0 fills, word by word; it was launched last.
  absl::Status Verify();
  double bytes() const { return static_cast<double>(items) * layer.shape.entry_bytes; }

  DeviceLayer layer;
  uint32_t items = 0;
  DeviceArray<uint64_t> frames;
  std::vector<gpu::PlanItem> plans_host[kPlans];
  DeviceArray<gpu::PlanItem> plan_items[kPlans];
  DeviceArray<uint32_t> count;  // of every plan
};

}  // namespace oasiskv::bench
