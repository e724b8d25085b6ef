#include "client/working_set/cuda/host/marks.h"

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

}  // namespace oasiskv
