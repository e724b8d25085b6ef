// What this GPU and its link give at best, measured in the same run as the steps.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "tools/bench/step/host_pool.h"
#include "tools/bench/step/model/model.h"
#include "tools/bench/step/results.h"

namespace oasiskv::bench::step {

// Reading `memory` (several times the L2) and copying within the device.
absl::Status MeasureHbm(std::span<const std::byte> memory, cudaStream_t stream, Ceilings& found);

struct GatherGrid {
  uint32_t ctas = 32, threads = 128, loads = 4;
};
// The copy engine out of the pool; the gather kernel with random entries of it, alone and beside a
// kernel that reads `memory` as fast as it can.
absl::Status MeasureLink(const Model& model, const HostPool& pool, const GatherGrid& grid,
                         std::span<const std::byte> memory, cudaStream_t stream, Ceilings& found);

}  // namespace oasiskv::bench::step
