#include "tools/bench/step/measure.h"

#include <utility>

#include "common/cuda/status.h"
#include "common/status_macros.h"
#include "tools/bench/rig/timing.h"

namespace oasiskv::bench::step {

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
    OASISKV_ASSIGN_OR_RETURN(section.begin, cuda::Event::Create(cuda::Event::Timing::kOn));
    OASISKV_ASSIGN_OR_RETURN(section.end, cuda::Event::Create(cuda::Event::Timing::kOn));
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

absl::Status MeasureSteps(const RoundPlan& plan, uint32_t warmup, cudaStream_t stream,
                          const std::function<absl::Status()>& step, SideResult& result) {
  for (uint32_t i = 0; i < warmup; ++i) OASISKV_RETURN_IF_ERROR(step());
  OASISKV_CUDA_RETURN(cudaStreamSynchronize(stream));
  const auto round = [&](uint32_t) -> absl::Status {
    for (uint32_t i = 0; i < plan.steps; ++i) OASISKV_RETURN_IF_ERROR(step());
    return absl::OkStatus();
  };
  const auto meet = [&] {
    plan.meet();
    return absl::OkStatus();
  };
  OASISKV_ASSIGN_OR_RETURN(std::vector<double> seconds,
                           TimeRepeats(stream, /*warmups=*/0, plan.rounds, round, meet));
  std::vector<double> rates;
  for (double& one : seconds) {
    rates.push_back(result.batch * plan.steps / one);
    one /= plan.steps;
  }
  result.step_seconds = SpreadOf(std::move(seconds));
  result.tokens_per_second = SpreadOf(std::move(rates));
  return absl::OkStatus();
}

absl::Status MeasureStages(const std::function<absl::Status(StageClock*)>& step,
                           SideResult& result) {
  StageClock clock;
  for (uint32_t i = 0; i < kStageSteps; ++i) {
    OASISKV_RETURN_IF_ERROR(step(&clock));
    OASISKV_RETURN_IF_ERROR(clock.Collect());
  }
  for (size_t s = 0; s < kStages; ++s) {
    result.stages.seconds[s] = clock.seconds(static_cast<Stage>(s)) / kStageSteps;
  }
  return absl::OkStatus();
}

absl::StatusOr<double> MedianStepSeconds(uint32_t steps, cudaStream_t stream,
                                         const std::function<absl::Status()>& step) {
  SideResult result;
  OASISKV_RETURN_IF_ERROR(MeasureSteps({.rounds = 3, .steps = steps}, 2, stream, step, result));
  return result.step_seconds.median;
}

}  // namespace oasiskv::bench::step
