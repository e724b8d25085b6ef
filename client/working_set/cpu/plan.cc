#include "client/working_set/cpu/plan.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "absl/strings/str_format.h"
#include "client/selection/score.h"
#include "client/selection/summary.h"
#include "client/working_set/options.h"
#include "oasiskv/error.h"

namespace oasiskv {

void Ranker::Rank(uint32_t layer, uint32_t slot, uint32_t candidates, const float* queries,
                  int32_t* out) {
  const Geometry& geometry = context_.options.geometry;
  const uint32_t ranked = RankedBlocks(context_.options);
  for (uint32_t h = 0; h < geometry.kv_heads; ++h) {
    ScoreBlocks({.summaries = context_.pool.Summaries(layer, slot, h),
                 .block_stride = geometry.summary_bytes(),
                 .element_type = geometry.element_type,
                 .head_dim = geometry.head_dim,
                 .blocks = candidates,
                 .queries = queries + uint64_t{h} * context_.group * geometry.head_dim,
                 .group = context_.group,
                 .combine = context_.options.combine,
                 .bound_weight = context_.options.bound_weight},
                scores_.data(), bounds_);
    int32_t* const list = out + uint64_t{h} * context_.resident();
    TopK(scores_.data(), candidates, ranked, list, scratch_);
    std::fill(list + ranked, list + context_.resident(), kNoBlock);
  }
}

void RoundSummary(const WorkingSetOptions& options, std::byte* summary) {
  if (options.summaries == SummaryType::kAsKeys) return;
  RoundSummaryToFloat8(options.geometry.element_type, options.geometry.head_dim, summary);
}

void PlanRow(const WorkingSetContext& context, uint32_t cap, Selector* selector, Row* row) {
  const uint32_t k = context.resident();
  for (uint32_t h = 0; h < context.heads(); ++h) {
    std::span<const int32_t> chosen(&row->promoted, row->promoted == kNoBlock ? 0 : 1);
    if (row->predicts) {
      std::span<int32_t> predicted = std::span(row->predicted).subspan(uint64_t{h} * k, k);
      if (row->promoted != kNoBlock) IncludePromoted(predicted, row->promoted);
      chosen = predicted;
    }
    selector->Select(h, chosen, row->promoted, cap, row->now, row->state->HeadMap(h, k),
                     row->state->HeadStamps(h, k), &row->changes, &row->counts);
  }
  if (!row->predicts) row->counts = SelectCounts();
}

void CopyCompleted(const WorkingSetContext& context, Row* row) {
  if (row->promoted == kNoBlock) return;
  const uint64_t entry = context.options.geometry.entry_bytes();
  row->completed.resize(context.heads() * entry);
  for (uint32_t h = 0; h < context.heads(); ++h) {
    std::memcpy(row->completed.data() + h * entry,
                context.pool.Page(row->state->layer, row->state->slot, h, context.resident()),
                entry);
  }
  for (Change& change : row->changes) {
    if (change.promoted) change.from = row->completed.data() + change.head * entry;
  }
}

absl::Status WriteBackCompleted(const WorkingSetContext& context, const Row& row) {
  if (row.promoted == kNoBlock) return absl::OkStatus();
  const Geometry& geometry = context.options.geometry;
  std::vector<std::byte> summaries(geometry.layer_summaries_bytes());
  for (uint32_t h = 0; h < context.heads(); ++h) {
    SummariseKeys(geometry.element_type, geometry.head_dim,
                  row.completed.data() + uint64_t{h} * geometry.entry_bytes(), geometry.key_bytes(),
                  geometry.block_tokens, summaries.data() + uint64_t{h} * geometry.summary_bytes());
  }
  const absl::Status status = row.source->WriteBack(
      BlockIndex(row.promoted), LayerIndex(row.state->layer), row.completed, summaries);
  return status.ok() ? status
                     : Annotate(status, absl::StrFormat("writing back block %d", row.promoted));
}

}  // namespace oasiskv
