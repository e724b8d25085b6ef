// Rounds of steps and their time; the stages of an eager step.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/working_set/cuda/host/launch.h"
#include "common/cuda/handles.h"
#include "tools/bench/step/results.h"

namespace oasiskv::bench::step {

// Thread contract: one thread.
//
// Sums the device time of an eager step by stage. A section is what was enqueued on `stream`
// between Begin and End.
class StageClock {
 public:
  absl::Status Begin(Stage stage, cudaStream_t stream);
  absl::Status End(cudaStream_t stream);
  // Waits for the sections and adds their times to the sums.
  absl::Status Collect();
  double seconds(Stage stage) const { return seconds_[static_cast<size_t>(stage)]; }

 private:
  struct Section {
    Stage stage;
    cuda::Event begin, end;
  };
  std::vector<Section> open_;
  std::vector<Section> spare_;
  std::array<double, kStages> seconds_{};
};

// Begin/End around a call when there is a clock.
template <typename Call>
absl::Status Timed(StageClock* clock, Stage stage, cudaStream_t stream, Call call) {
  if (clock != nullptr) {
    if (absl::Status s = clock->Begin(stage, stream); !s.ok()) return s;
  }
  if (absl::Status s = call(); !s.ok()) return s;
  return clock != nullptr ? clock->End(stream) : absl::OkStatus();
}

struct RoundPlan {
  uint32_t rounds = 5, steps = 20;
  // Called before each round: GPUs that are measured together begin it together.
  std::function<void()> meet = [] {};
};

// Runs `warmup` steps, then the rounds, and fills the times of `result` (batch is set already).
absl::Status MeasureSteps(const RoundPlan& plan, uint32_t warmup, cudaStream_t stream,
                          const std::function<absl::Status()>& step, SideResult& result);

// Runs kStageSteps eager steps and fills the stages of `result` with their means.
inline constexpr uint32_t kStageSteps = 3;
absl::Status MeasureStages(const std::function<absl::Status(StageClock*)>& step,
                           SideResult& result);

// Median seconds of a step that is no side's own (the foreground alone).
absl::StatusOr<double> MedianStepSeconds(uint32_t steps, cudaStream_t stream,
                                         const std::function<absl::Status()>& step);

}  // namespace oasiskv::bench::step
