// The side that is compared against: the whole KV in HBM, attention over all of it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "tools/bench/step/foreground.h"
#include "tools/bench/step/measure.h"
#include "tools/bench/step/model/model.h"
#include "tools/bench/step/results.h"

namespace oasiskv::bench::step {

struct DenseOptions {
  uint32_t context = 0, batch = 0;
  RoundPlan rounds;
  bool eager = false;
};

// Allocates, measures, frees. bound_seconds is HBM bytes over `hbm_rate`.
absl::StatusOr<SideResult> RunDense(const Model& model, const Weights& weights,
                                    const GemmLibrary& library, const DenseOptions& options,
                                    double hbm_rate, cudaStream_t stream);

}  // namespace oasiskv::bench::step
