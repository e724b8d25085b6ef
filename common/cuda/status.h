// CUDA's error codes as the project's statuses.
#pragma once

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace oasiskv::cuda {

// OK, or what `call` ran into: CAPACITY for memory, UNSUPPORTED for a missing driver or device,
// else INTERNAL. Takes the error off the runtime's per-thread record, so that no later call reports
// it.
absl::Status ToStatus(cudaError_t error, absl::string_view call);

}  // namespace oasiskv::cuda

#define OASISKV_CUDA_RETURN(call)                                               \
  do {                                                                          \
    if (const cudaError_t oasiskv_error = (call); oasiskv_error != cudaSuccess) \
      return ::oasiskv::cuda::ToStatus(oasiskv_error, #call);                   \
  } while (false)
