// oasis-bench-gpu: what needs a GPU and no daemon. A program of its own, so that it can be carried
// to a GPU machine that has neither gRPC nor UCX.
#include <cuda_runtime_api.h>

#include "tools/bench/gpu/operations.h"

namespace oasiskv::bench {
namespace {

// `run` where there is a GPU.
template <absl::Status (*run)()>
absl::Status WithGpu() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) return run();
  return MakeError(ErrorCode::kUnsupported,
                   "needs an NVIDIA GPU and its driver; nvidia-smi shows what this machine has");
}

}  // namespace
}  // namespace oasiskv::bench

int main(int argc, char** argv) {
  using namespace oasiskv::bench;  // NOLINT: main() alone
  const std::vector<Operation> operations = GpuOperations({.gather = WithGpu<RunGather>,
                                                           .score = WithGpu<RunScore>,
                                                           .select = WithGpu<RunSelect>,
                                                           .step = WithGpu<RunStep>});
  return RunProgram(argc, argv, kGpuProgram,
                    "measures the working set's kernels, and a decode step, on this machine's GPUs",
                    operations);
}
