// The queries of the sparse side: memory of a QueryWalk.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cuda/handles.h"
#include "tools/bench/step/kernels/small_kernels.h"

namespace oasiskv::bench::step {

// Thread contract: one thread.
class Walk {
 public:
  // Starts in the walk's stationary state.
  static absl::StatusOr<Walk> Create(uint32_t layers, uint32_t rows, uint32_t columns, float a,
                                     uint64_t seed, cudaStream_t stream);
  absl::Status Advance(cudaStream_t stream) const;
  void set_a(float a) { walk_.a = a; }
  // BF16 [2][row][columns]: token rows, then draft rows.
  const std::byte* OfLayer(uint32_t layer) const {
    return queries_.data() + layer * 4 * walk_.rows * walk_.columns;
  }
  const std::byte* DraftsOfLayer(uint32_t layer) const {
    return OfLayer(layer) + 2 * walk_.rows * walk_.columns;
  }

 private:
  QueryWalk walk_;
  cuda::DeviceBuffer state_, queries_, step_;
};

}  // namespace oasiskv::bench::step
