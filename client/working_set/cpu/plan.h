// From queries to a plan: ranks a layer's blocks and decides what a row changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "client/selection/select.h"
#include "client/working_set/cpu/job.h"
#include "client/working_set/cpu/pages.h"

namespace oasiskv {

// Thread contract: used by one thread at a time; holds scratch memory only.
class Ranker {
 public:
  explicit Ranker(const WorkingSetContext& context)  // outlives the ranker
      : context_(context), scores_(context.options.max_blocks) {}

  // The top-K of every head among blocks [0, candidates), into [head][K], -1 where there are fewer.
  void Rank(uint32_t layer, uint32_t slot, uint32_t candidates, const float* queries, int32_t* out);

 private:
  const WorkingSetContext& context_;
  std::vector<float> scores_;
  std::vector<float> bounds_;
  std::vector<uint64_t> scratch_;
};

// Makes a summary of the pool what WorkingSetOptions::summaries says. This backend keeps the
// rounded numbers in the keys' element type: what it gains is the plans of a backend that stores
// them in 8 bits.
void RoundSummary(const WorkingSetOptions& options, std::byte* summary);

// Plans the changes of `row` from its prediction (or of its promotion alone) under `cap`, and
// stamps the residents that stay.
void PlanRow(const WorkingSetContext& context, uint32_t cap, Selector* selector, Row* row);

// Copies the block that the local page completed, all heads, out of the local page. Needs the plan.
void CopyCompleted(const WorkingSetContext& context, Row* row);

// Hands that copy and its summaries, which are never rounded, to the source.
absl::Status WriteBackCompleted(const WorkingSetContext& context, const Row& row);

}  // namespace oasiskv
