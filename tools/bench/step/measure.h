// Rounds of steps and their time.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/bench/step/results.h"

namespace oasiskv::bench::step {

struct RoundPlan {
  uint32_t rounds = 5, steps = 20;
  // Called before each round: GPUs that are measured together begin it together.
  std::function<void()> meet = [] {};
};

// Runs `warmup` steps, then the rounds, and fills the times of `result` (batch is set already).
absl::Status MeasureSteps(const RoundPlan& plan, uint32_t warmup, cudaStream_t stream,
                          const std::function<absl::Status()>& step, SideResult& result);

// Median seconds of a step that is no side's own (the foreground alone).
absl::StatusOr<double> MedianStepSeconds(uint32_t steps, cudaStream_t stream,
                                         const std::function<absl::Status()>& step);

}  // namespace oasiskv::bench::step
