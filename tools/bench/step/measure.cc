#include "tools/bench/step/measure.h"

#include <utility>
#include <vector>

#include "common/cuda/status.h"
#include "common/status_macros.h"

namespace oasiskv::bench::step {

absl::Status MeasureSteps(const RoundPlan& plan, uint32_t warmup, cudaStream_t stream,
                          const std::function<absl::Status()>& step, SideResult& result) {
  for (uint32_t i = 0; i < warmup; ++i) OASISKV_RETURN_IF_ERROR(step());
  OASISKV_CUDA_RETURN(cudaStreamSynchronize(stream));
  OASISKV_ASSIGN_OR_RETURN(TimedEvent begin, TimedEvent::Create());
  OASISKV_ASSIGN_OR_RETURN(TimedEvent end, TimedEvent::Create());
  std::vector<double> seconds, rates;
  for (uint32_t round = 0; round < plan.rounds; ++round) {
    plan.meet();
    OASISKV_CUDA_RETURN(cudaEventRecord(begin.get(), stream));
    for (uint32_t i = 0; i < plan.steps; ++i) OASISKV_RETURN_IF_ERROR(step());
    OASISKV_CUDA_RETURN(cudaEventRecord(end.get(), stream));
    OASISKV_CUDA_RETURN(cudaEventSynchronize(end.get()));
    OASISKV_ASSIGN_OR_RETURN(const double all, SecondsBetween(begin, end));
    seconds.push_back(all / plan.steps);
    rates.push_back(result.batch * plan.steps / all);
  }
  result.step_seconds = SpreadOf(std::move(seconds));
  result.tokens_per_second = SpreadOf(std::move(rates));
  return absl::OkStatus();
}

absl::StatusOr<double> MedianStepSeconds(uint32_t steps, cudaStream_t stream,
                                         const std::function<absl::Status()>& step) {
  SideResult result;
  OASISKV_RETURN_IF_ERROR(MeasureSteps({.rounds = 3, .steps = steps}, 2, stream, step, result));
  return result.step_seconds.median;
}

}  // namespace oasiskv::bench::step
