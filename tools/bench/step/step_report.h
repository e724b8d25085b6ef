// What a run prints: tables for people, or one JSON object per line.
#pragma once

#include "tools/bench/step/run.h"

namespace oasiskv::bench::step {

void PrintTables(const RunOptions& options, const DeviceResults& results);
// {"operation": "step", "kind": "ceilings" | "dense" | "sparse", ...}; what
// tools/bench/step/plot.py reads.
void PrintJson(const RunOptions& options, const DeviceResults& results);

// The dense result that a sparse one is compared with: that of the same batch where batches were
// asked for, else the one with the most tokens per second; null without one.
const SideResult* DenseOf(const RunOptions& options, const DeviceResults& results,
                          const SideResult& sparse);

}  // namespace oasiskv::bench::step
