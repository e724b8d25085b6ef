// The side that is measured: a working set in HBM, the whole KV in host memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "tools/bench/step/ceilings.h"
#include "tools/bench/step/foreground.h"
#include "tools/bench/step/host_pool.h"
#include "tools/bench/step/measure.h"
#include "tools/bench/step/model/model.h"
#include "tools/bench/step/results.h"

namespace oasiskv::bench::step {

struct SparseOptions {
  uint32_t context = 0, batch = 0, warmup = 60;
  uint32_t resident = 128, spare = 0;  // blocks that are ranked; pages beyond them
  double ratio = 0.05;
  SummaryType summaries = SummaryType::kAsKeys;
  float walk = 1;  // a of the queries' walk
  GatherGrid grid;
  RoundPlan rounds;
  bool eager = false;
  // The score kernel has a lower priority than the step.
  bool predict_behind = false;
  // Multiprocessors that only scores use; 0: all work shares all of them.
  uint32_t predict_processors = 0;
  // The last layer's prediction opens the next step.
  bool last_layer_first = true;

  uint32_t pages() const { return resident + spare; }
};

// Allocates, admits, measures, frees. bound_seconds is max(HBM bytes / HBM rate, link bytes /
// gather rate) with the rates of `ceilings`.
absl::StatusOr<SideResult> RunSparse(const Model& model, const Weights& weights,
                                     const GemmLibrary& library,
                                     const std::shared_ptr<const HostPool>& pool,
                                     const SparseOptions& options, const Ceilings& ceilings,
                                     cudaStream_t stream);

}  // namespace oasiskv::bench::step
