// A whole run: ceilings, the dense side, the sparse side, on any number of GPUs.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/bench/step/ceilings.h"
#include "tools/bench/step/model/model.h"
#include "tools/bench/step/results.h"

namespace oasiskv::bench::step {

struct RunOptions {
  Model model;
  uint32_t devices = 1, context = 16384, resident = 128;
  uint64_t hbm = 0, host_bytes = 0;  // of one GPU; of all GPUs together
  std::vector<double> ratios;
  std::vector<uint32_t> spares;   // pages of a head beyond `resident`
  std::vector<uint32_t> batches;  // empty: the largest that fits, of each side
  SummaryType summaries = SummaryType::kAsKeys;
  double churn = 17;
  uint32_t rounds = 5, steps = 20, warmup = 60;
  GatherGrid grid;
  bool dense = true, sparse = true, eager = false, last_layer_first = true;
  bool predict_behind = false;
  uint32_t predict_processors = 0;
};

struct DeviceResults {
  RunInfo info;
  Ceilings ceilings;
  double churn = 0;  // measured
  std::vector<SideResult> sides;
};

// One entry a GPU. GPUs run the same at the same time, each from a thread of its own.
absl::StatusOr<std::vector<DeviceResults>> Run(const RunOptions& options);

// The GPUs' results as one: rates and bytes added, times of the slowest.
DeviceResults Sum(const std::vector<DeviceResults>& devices);

}  // namespace oasiskv::bench::step
