// Order between streams, in and outside of a graph's capture.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cuda/handles.h"

namespace oasiskv {

// The capture that `stream` takes part in, or 0.
absl::StatusOr<uint64_t> CaptureOf(cudaStream_t stream);

// Thread contract: used by the driving thread.
//
// A place in a stream that others wait for. An event recorded in one capture means nothing outside
// of it, nor one of the outside within; what such a wait would order is ordered already, because a
// graph joins all its streams before it ends and steps follow each other in one stream.
class Mark {
 public:
  absl::Status Create();
  absl::Status Record(cudaStream_t stream);
  // Makes `stream` wait, and takes it into the mark's capture if there is one.
  absl::Status Lead(cudaStream_t stream) const;
  // The same for a stream that may be elsewhere: does nothing unless it is where the mark is.
  absl::Status WaitIfSame(cudaStream_t stream) const;
  uint64_t capture() const { return capture_; }

 private:
  cuda::Event event_;
  bool recorded_ = false;
  uint64_t capture_ = 0;
};

}  // namespace oasiskv
