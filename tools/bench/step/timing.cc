#include "tools/bench/step/timing.h"

#include "absl/strings/str_cat.h"
#include "common/cuda/status.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::bench::step {

absl::StatusOr<TimedEvent> TimedEvent::Create() {
  TimedEvent event;
  OASISKV_CUDA_RETURN(cudaEventCreate(&event.event_));
  return event;
}

TimedEvent::~TimedEvent() {
  if (event_ != nullptr) cudaEventDestroy(event_);
}

absl::StatusOr<double> SecondsBetween(const TimedEvent& begin, const TimedEvent& end) {
  float milliseconds = 0;
  OASISKV_CUDA_RETURN(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
  return static_cast<double>(milliseconds) * 1e-3;
}

const char* StageName(Stage stage) {
  constexpr const char* kNames[kStages] = {"gemm",  "attention", "other", "exposed_wait",
                                           "score", "select",    "gather"};
  return kNames[static_cast<size_t>(stage)];
}

absl::Status StageClock::Begin(Stage stage, cudaStream_t stream) {
  Section section;
  if (!spare_.empty()) {
    section = std::move(spare_.back());
    spare_.pop_back();
  } else {
    OASISKV_ASSIGN_OR_RETURN(section.begin, TimedEvent::Create());
    OASISKV_ASSIGN_OR_RETURN(section.end, TimedEvent::Create());
  }
  section.stage = stage;
  OASISKV_CUDA_RETURN(cudaEventRecord(section.begin.get(), stream));
  open_.push_back(std::move(section));
  return absl::OkStatus();
}

absl::Status StageClock::End(cudaStream_t stream) {
  OASISKV_CUDA_RETURN(cudaEventRecord(open_.back().end.get(), stream));
  return absl::OkStatus();
}

absl::Status StageClock::Collect() {
  for (Section& section : open_) {
    OASISKV_CUDA_RETURN(cudaEventSynchronize(section.end.get()));
    OASISKV_ASSIGN_OR_RETURN(const double seconds, SecondsBetween(section.begin, section.end));
    seconds_[static_cast<size_t>(section.stage)] += seconds;
    spare_.push_back(std::move(section));
  }
  open_.clear();
  return absl::OkStatus();
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
    return Annotate(status, "while the step was captured");
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

absl::Status Launched(const char* error, const char* what) {
  if (error == nullptr) return absl::OkStatus();
  return MakeError(ErrorCode::kInternal, absl::StrCat(what, ": ", error));
}

}  // namespace oasiskv::bench::step
