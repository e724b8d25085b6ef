// The result of a kernel launch as a status.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "client/working_set/cuda/kernels/kernels.h"
#include "oasiskv/error.h"
#include "oasiskv/ids.h"

namespace oasiskv {

inline absl::Status Launched(const char* what, LayerIndex layer, gpu::LaunchError error) {
  if (error == nullptr) return absl::OkStatus();
  return MakeError(ErrorCode::kInternal,
                   absl::StrFormat("%s at layer %d: %s", what, layer.value(), error));
}

}  // namespace oasiskv
