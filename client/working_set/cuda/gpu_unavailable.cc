// The cuda backend where the library was built without it.
#include "oasiskv/error.h"
#include "oasiskv/gpu_working_set.h"

namespace oasiskv {

absl::StatusOr<std::unique_ptr<GpuWorkingSet>> GpuWorkingSet::Create(const GpuWorkingSetOptions&) {
  return MakeError(ErrorCode::kUnsupported,
                   "this oasiskv was built without its cuda backend; build it with nvcc on PATH "
                   "and cmake -DOASISKV_CUDA=ON");
}

}  // namespace oasiskv
