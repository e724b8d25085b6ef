#include "tools/bench/rig/timing.h"

#include "common/cuda/status.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::bench {

absl::StatusOr<cuda::Event> Mark(cudaStream_t stream) {
  OASISKV_ASSIGN_OR_RETURN(cuda::Event mark, cuda::Event::Create(cuda::Event::Timing::kOn));
  OASISKV_CUDA_RETURN(cudaEventRecord(mark.get(), stream));
  return mark;
}

absl::StatusOr<double> SecondsBetween(const cuda::Event& begin, const cuda::Event& end) {
  float milliseconds = 0;
  OASISKV_CUDA_RETURN(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
  return static_cast<double>(milliseconds) * 1e-3;
}

absl::StatusOr<std::vector<double>> TimeRepeats(
    cudaStream_t stream, uint32_t warmups, uint32_t repeats,
    const std::function<absl::Status(uint32_t)>& enqueue,
    const std::function<absl::Status()>& prepare) {
  OASISKV_ASSIGN_OR_RETURN(const cuda::Event begin, cuda::Event::Create(cuda::Event::Timing::kOn));
  OASISKV_ASSIGN_OR_RETURN(const cuda::Event end, cuda::Event::Create(cuda::Event::Timing::kOn));
  std::vector<double> seconds;
  for (uint32_t i = 0; i < warmups + repeats; ++i) {
    if (prepare) OASISKV_RETURN_IF_ERROR(prepare());
    OASISKV_CUDA_RETURN(cudaEventRecord(begin.get(), stream));
    OASISKV_RETURN_IF_ERROR(enqueue(i));
    OASISKV_CUDA_RETURN(cudaEventRecord(end.get(), stream));
    OASISKV_CUDA_RETURN(cudaEventSynchronize(end.get()));
    OASISKV_ASSIGN_OR_RETURN(const double one, SecondsBetween(begin, end));
    if (i >= warmups) seconds.push_back(one);
  }
  return seconds;
}

absl::StatusOr<Graph> Graph::Capture(cudaStream_t stream,
                                     const std::function<absl::Status()>& enqueue) {
  Graph graph;
  cudaGraph_t captured = nullptr;
  // Thread-local: other GPUs' threads allocate meanwhile.
  OASISKV_CUDA_RETURN(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  const absl::Status status = enqueue();
  const cudaError_t ended = cudaStreamEndCapture(stream, &captured);
  if (!status.ok()) {
    if (captured != nullptr) cudaGraphDestroy(captured);
    cuda::ToStatus(ended, "cudaStreamEndCapture").IgnoreError();  // a consequence
    return Annotate(status, "while a graph was captured");
  }
  OASISKV_RETURN_IF_ERROR(cuda::ToStatus(ended, "cudaStreamEndCapture"));
  const cudaError_t counted = cudaGraphGetNodes(captured, nullptr, &graph.nodes_);
  const cudaError_t made = cudaGraphInstantiateWithFlags(&graph.exec_, captured,
                                                         cudaGraphInstantiateFlagUseNodePriority);
  cudaGraphDestroy(captured);
  OASISKV_RETURN_IF_ERROR(cuda::ToStatus(counted, "cudaGraphGetNodes"));
  OASISKV_RETURN_IF_ERROR(cuda::ToStatus(made, "cudaGraphInstantiate"));
  return graph;
}

Graph::~Graph() {
  if (exec_ != nullptr) cudaGraphExecDestroy(exec_);
}

absl::Status Graph::Launch(cudaStream_t stream) const {
  OASISKV_CUDA_RETURN(cudaGraphLaunch(exec_, stream));
  return absl::OkStatus();
}

}  // namespace oasiskv::bench
