// Points in time on streams.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "absl/status/statusor.h"
#include "common/cuda/status.h"

namespace oasiskv::bench {

// Thread contract: one thread; a move-only owner of an event with timing.
class TimePoint {
 public:
  static absl::StatusOr<TimePoint> Record(cudaStream_t stream) {
    TimePoint point;
    OASISKV_CUDA_RETURN(cudaEventCreate(&point.event_));
    OASISKV_CUDA_RETURN(cudaEventRecord(point.event_, stream));
    return point;
  }
  TimePoint(TimePoint&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  TimePoint& operator=(TimePoint&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~TimePoint() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  cudaEvent_t get() const { return event_; }

  // Seconds from `start` to this point, both passed.
  absl::StatusOr<double> Since(const TimePoint& start) const {
    float ms = 0;
    OASISKV_CUDA_RETURN(cudaEventElapsedTime(&ms, start.event_, event_));
    return ms * 1e-3;
  }

 private:
  TimePoint() = default;
  cudaEvent_t event_ = nullptr;
};

}  // namespace oasiskv::bench
