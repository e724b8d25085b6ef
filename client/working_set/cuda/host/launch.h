// The result of a kernel launch as a status.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "client/working_set/cuda/kernels/kernels.h"
#include "oasiskv/error.h"
#include "oasiskv/ids.h"

namespace oasiskv {

inline absl::Status Launched(const char* what, gpu::LaunchError error) {
  if (error == nullptr) return absl::OkStatus();
  return MakeError(ErrorCode::kInternal, absl::StrFormat("%s: %s", what, error));
}

inline absl::Status Launched(const char* what, LayerIndex layer, gpu::LaunchError error) {
  if (error == nullptr) return absl::OkStatus();
  return Launched(absl::StrFormat("%s at layer %d", what, layer.value()).c_str(), error);
}

}  // namespace oasiskv
