#include "tools/bench/gpu/timing.h"

#include <vector>

#include "common/cuda/status.h"
#include "oasiskv/error.h"

namespace oasiskv::bench {
namespace {

// Thread contract: one thread. Owns what a measurement makes.
struct Objects {
  ~Objects() {
    if (exec != nullptr) cudaGraphExecDestroy(exec);
    if (graph != nullptr) cudaGraphDestroy(graph);
    if (begin != nullptr) cudaEventDestroy(begin);
    if (end != nullptr) cudaEventDestroy(end);
    if (stream != nullptr) cudaStreamDestroy(stream);
  }
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
};

}  // namespace

absl::StatusOr<Spread> TimeGraph(const std::function<const char*(cudaStream_t)>& enqueue,
                                 int repeats) {
  Objects o;
  OASISKV_CUDA_RETURN(cudaStreamCreateWithFlags(&o.stream, cudaStreamNonBlocking));
  OASISKV_CUDA_RETURN(cudaEventCreate(&o.begin));
  OASISKV_CUDA_RETURN(cudaEventCreate(&o.end));
  OASISKV_CUDA_RETURN(cudaStreamBeginCapture(o.stream, cudaStreamCaptureModeThreadLocal));
  const char* const error = enqueue(o.stream);
  OASISKV_CUDA_RETURN(cudaStreamEndCapture(o.stream, &o.graph));
  if (error != nullptr) return MakeError(ErrorCode::kInternal, error);
  OASISKV_CUDA_RETURN(cudaGraphInstantiate(&o.exec, o.graph, 0));
  std::vector<double> seconds;
  for (int i = -2; i < repeats; ++i) {
    OASISKV_CUDA_RETURN(cudaEventRecord(o.begin, o.stream));
    OASISKV_CUDA_RETURN(cudaGraphLaunch(o.exec, o.stream));
    OASISKV_CUDA_RETURN(cudaEventRecord(o.end, o.stream));
    OASISKV_CUDA_RETURN(cudaEventSynchronize(o.end));
    float ms = 0;
    OASISKV_CUDA_RETURN(cudaEventElapsedTime(&ms, o.begin, o.end));
    if (i >= 0) seconds.push_back(ms * 1e-3);
  }
  return SpreadOf(std::move(seconds));
}

}  // namespace oasiskv::bench
