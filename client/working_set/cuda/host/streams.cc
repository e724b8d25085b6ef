#include "client/working_set/cuda/host/streams.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "common/cuda/status.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv {

absl::StatusOr<uint64_t> CaptureOf(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  OASISKV_CUDA_RETURN(cudaStreamGetCaptureInfo(stream, &status, &id));
  if (status == cudaStreamCaptureStatusNone) return 0;
  if (status == cudaStreamCaptureStatusActive) return id;
  return MakeError(ErrorCode::kWrongState, "the stream's capture was broken by an earlier error");
}

absl::Status Mark::Create() {
  OASISKV_ASSIGN_OR_RETURN(event_, cuda::Event::Create());
  return absl::OkStatus();
}

absl::Status Mark::Record(cudaStream_t stream) {
  OASISKV_ASSIGN_OR_RETURN(capture_, CaptureOf(stream));
  OASISKV_CUDA_RETURN(cudaEventRecord(event_.get(), stream));
  recorded_ = true;
  return absl::OkStatus();
}

absl::Status Mark::Lead(cudaStream_t stream) const {
  OASISKV_CUDA_RETURN(cudaStreamWaitEvent(stream, event_.get(), 0));
  return absl::OkStatus();
}

absl::Status Mark::WaitIfSame(cudaStream_t stream) const {
  if (!recorded_) return absl::OkStatus();
  OASISKV_ASSIGN_OR_RETURN(const uint64_t here, CaptureOf(stream));
  return here == capture_ ? Lead(stream) : absl::OkStatus();
}

absl::Status Streams::DivideProcessors(const GpuWorkingSetOptions& options) {
  int processors = 0;
  OASISKV_CUDA_RETURN(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount,
                                             static_cast<int>(options.device)));
  const auto all = static_cast<uint32_t>(processors);
  score_processors_ = all > 2 * options.gather_ctas ? all - options.gather_ctas : all;
  foreground_processors_ = all;
  if (options.predict_processors == 0) return absl::OkStatus();
  const uint32_t parts[] = {1, options.predict_processors};
  auto made = cuda::Processors::Divide(options.device, parts);
  if (!made.ok()) return Annotate(made.status(), "GpuWorkingSetOptions.predict_processors");
  processors_ = *std::move(made);
  score_processors_ = processors_[1].count();
  foreground_processors_ = processors_[2].count();
  OASISKV_ASSIGN_OR_RETURN(foreground_, processors_[2].StreamOf(/*priority=*/0));
  return absl::OkStatus();
}

absl::StatusOr<Streams> Streams::Create(const GpuWorkingSetOptions& options, uint32_t layers) {
  Streams made;
  OASISKV_RETURN_IF_ERROR(made.DivideProcessors(options));
  made.layers_.resize(layers);
  const auto stream_of = [&made](size_t part, int priority) {
    return made.processors_.empty() ? cuda::Stream::Create(priority)
                                    : made.processors_[part].StreamOf(priority);
  };
  for (cuda::Stream& stream : made.transfer_) {
    OASISKV_ASSIGN_OR_RETURN(stream, stream_of(0, options.priority));
  }
  OASISKV_ASSIGN_OR_RETURN(made.predict_,
                           stream_of(1, options.predict_priority.value_or(options.priority)));
  OASISKV_ASSIGN_OR_RETURN(made.select_, stream_of(1, options.priority));
  OASISKV_ASSIGN_OR_RETURN(made.admit_, cuda::Stream::Create(0));
  for (Mark& mark : made.joined_) OASISKV_RETURN_IF_ERROR(mark.Create());
  for (LayerMarks& layer : made.layers_) {
    for (Mark* mark :
         {&layer.given, &layer.ranked, &layer.selected, &layer.attended, &layer.transferred}) {
      OASISKV_RETURN_IF_ERROR(mark->Create());
    }
  }
  return made;
}

absl::Status Streams::Join(cudaStream_t stream) {
  const cuda::Stream* const background[] = {&predict_, &select_, &transfer_[0], &transfer_[1]};
  for (int i = 0; i < 4; ++i) {
    OASISKV_RETURN_IF_ERROR(joined_[i].Record(background[i]->get()));
    OASISKV_RETURN_IF_ERROR(joined_[i].WaitIfSame(stream));
  }
  return absl::OkStatus();
}

absl::Status Streams::Synchronize() {
  for (const cuda::Stream* stream : {&predict_, &select_, &transfer_[0], &transfer_[1]}) {
    OASISKV_CUDA_RETURN(cudaStreamSynchronize(stream->get()));
  }
  return absl::OkStatus();
}

}  // namespace oasiskv
