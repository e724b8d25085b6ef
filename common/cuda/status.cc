#include "common/cuda/status.h"

#include "absl/strings/str_cat.h"
#include "oasiskv/error.h"

namespace oasiskv::cuda {

absl::Status ToStatus(cudaError_t error, absl::string_view call) {
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();
  const absl::string_view name = call.substr(0, call.find('('));
  const std::string text =
      absl::StrCat(name, ": ", cudaGetErrorName(error), " (", cudaGetErrorString(error), ")");
  switch (error) {
    case cudaErrorMemoryAllocation:
      return MakeError(ErrorCode::kCapacity, text);
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorNoKernelImageForDevice:
      return MakeError(ErrorCode::kUnsupported, text);
    case cudaErrorInvalidDevice:
      return MakeError(ErrorCode::kInvalidArgument, text);
    default:
      return MakeError(ErrorCode::kInternal, text);
  }
}

}  // namespace oasiskv::cuda
