// The operations that need a GPU. They are listed by oasis-bench too, which needs no CUDA.
#pragma once

#include <vector>

#include "tools/bench/operation.h"

namespace oasiskv::bench {

// Only oasis-bench-gpu has them.
absl::Status RunGather();
absl::Status RunScore();
absl::Status RunSelect();
absl::Status RunStep();

inline constexpr char kGpuProgram[] = "oasis-bench-gpu";

struct GpuRuns {
  absl::Status (*gather)() = nullptr;
  absl::Status (*score)() = nullptr;
  absl::Status (*select)() = nullptr;
  absl::Status (*step)() = nullptr;
};

// Without `runs` for a program that starts oasis-bench-gpu for them.
inline std::vector<Operation> GpuOperations(const GpuRuns& runs = {}) {
  const char* const elsewhere = runs.step == nullptr ? kGpuProgram : nullptr;
  return {{"gather",
           "random entries of host memory into pages, beside copy engine and HBM reader",
           "gather --gather_entry_bytes=8192 --gather_grids=4x1024x4,8x512x4",
           {"gpu/gather.cc"},
           runs.gather,
           elsewhere},
          {"score",
           "scores and top-K of one layer, beside the rate at which HBM is read",
           "score --batch=128 --blocks=1024,2048 --summaries=fp8",
           {"gpu/score.cc", "gpu/flags.cc"},
           runs.score,
           elsewhere},
          {"select",
           "the changes that predictions ask of the residents",
           "select",
           {"gpu/select.cc"},
           runs.select,
           elsewhere},
          {"step",
           "a decode step: the working set in HBM against the whole KV in HBM",
           "step --model=tools/bench/step/models/qwen3-8b.json --ratios=0.05,1.0",
           {"step/step.cc", "gpu/flags.cc"},
           runs.step,
           elsewhere}};
}

}  // namespace oasiskv::bench
