// Memory of a GPU, registered by its dma-buf so that the network's device reads and writes it
// itself (GPUDirect RDMA).
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/fabric/fabric.h"
#include "common/fabric/verbs/handles.h"
#include "common/fabric/verbs/port.h"

namespace oasiskv::fabric::verbs {

// OK when memory of other devices can be registered with this port's. UNSUPPORTED names what lacks
// it: the verbs library, or kernel and driver.
absl::Status ProbeDeviceMemory(const Port& port, ibv_pd* domain);

// Errors: INVALID_ARGUMENT (no descriptor, no bytes), UNSUPPORTED (as the probe; or the descriptor
// is no dma-buf), CAPACITY, INTERNAL.
absl::StatusOr<MemoryRegion> RegisterDeviceMemory(const Port& port, ibv_pd* domain,
                                                  const DeviceBuffer& memory);

}  // namespace oasiskv::fabric::verbs
