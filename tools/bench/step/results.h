// What a run found, on one GPU or summed over several.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tools/bench/samples.h"

namespace oasiskv::bench::step {

enum class Stage { kGemm, kAttention, kOther, kExposedWait, kScore, kSelect, kGather };
inline constexpr size_t kStages = 7;
const char* StageName(Stage stage);

// Rates in bytes per second.
struct Ceilings {
  double hbm_read = 0;
  double hbm_copy = 0;  // bytes read plus bytes written
  double copy_engine = 0;
  double gather_alone = 0;
  double gather_beside = 0;    // while a kernel reads HBM as fast as it can
  double hbm_read_beside = 0;  // what that kernel got meanwhile
};

struct StageTimes {
  std::array<double, kStages> seconds{};  // of one eager step
};

// One side at one batch.
struct SideResult {
  std::string side;  // "dense" or "sparse"
  uint32_t batch = 0;
  double ratio = 0;    // sparse: fetch ratio
  uint32_t spare = 0;  // sparse: pages of a head beyond the ranked blocks
  double churn = 0;    // sparse: measured, blocks per head and step
  double fetched = 0;  // sparse: blocks per head and step
  double refused = 0;  // sparse: by the cap, blocks per head and step
  uint64_t request_bytes = 0;
  Spread step_seconds;  // over rounds
  Spread tokens_per_second;
  double hbm_bytes = 0;  // that one step must move
  double link_bytes = 0;
  double bound_seconds = 0;
  double foreground_seconds = 0;  // the same graph without the working set; 0: not measured
  bool eager = false;
  uint64_t graph_nodes = 0;
  StageTimes stages;
  double weights_seconds = 0;  // of the products, each tuned alone
};

struct RunInfo {
  std::string model, gpu;
  uint32_t devices = 1, context = 0, resident = 0, rounds = 0, steps = 0;
  uint64_t hbm = 0, weights = 0, host_bytes = 0;
  uint32_t host_sequences = 0;
  uint32_t gather_ctas = 0, gather_threads = 0, gather_loads = 0;
  double walk = 0;  // a of the queries' walk
};

}  // namespace oasiskv::bench::step
