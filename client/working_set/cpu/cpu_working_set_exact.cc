// Resolve: the true selection, fetched before attention in the calling thread.
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/working_set/cpu/cpu_working_set.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv {

absl::Status CpuWorkingSet::Resolve(LayerIndex layer, std::span<const RequestSlot> slots,
                                    const float* queries) {
  OASISKV_RETURN_IF_ERROR(CheckIdle("Resolve", layer, slots));
  if (context_.options.mode != SelectionMode::kExact) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "Resolve is of SelectionMode::kExact; in kCapped the prediction decides "
                     "(SampleAgreement compares)");
  }
  OASISKV_RETURN_IF_ERROR(CheckQueries("Resolve", layer, slots, queries));
  if (slots.empty()) return absl::OkStatus();
  const Geometry& geometry = context_.options.geometry;
  std::shared_ptr<Job> job = NewJob(layer, slots);
  std::vector<WorkingSetStats> deltas(slots.size());
  std::vector<Row*> rows;
  for (size_t i = 0; i < slots.size(); ++i) {
    Row& row = job->rows[i];
    row.predicts = true;
    row.candidates = row.state->complete;  // a full local block is still attended as the local one
    row.promoted = kNoBlock;
    row.state->clock = row.now;
    row.predicted.resize(size_t{context_.heads()} * context_.resident());
    ranker_.Rank(row.state->layer, row.state->slot, row.candidates,
                 queries + i * context_.options.query_heads * geometry.head_dim,
                 row.predicted.data());
    CountAgreement(row.predicted, row.state, &deltas[i]);
    PlanRow(context_, std::numeric_limits<uint32_t>::max(), &selector_, &row);
    rows.push_back(&row);
  }
  job->fetches = GatherFetches(layer, rows, geometry.entry_bytes(), &staging_);
  for (SourceFetch& fetch : job->fetches) PostFetch(&fetch, job->deadline);
  for (SourceFetch& fetch : job->fetches) {
    if (!fetch.ended) fetch.status = fetch.pending->Wait();
  }
  absl::Status first;
  for (size_t i = 0; i < slots.size(); ++i) {
    Row& row = job->rows[i];
    if (row.fetch != kNoFetch) row.status = job->fetches[row.fetch].status;
    const uint64_t fetched =
        Install(context_.pool, geometry, context_.resident(), row.changes,
                row.status.ok() ? Fetched::kYes : Fetched::kNo, row.now, row.state);
    deltas[i].demanded = fetched;
    deltas[i].bytes_moved = fetched * geometry.entry_bytes();
    first.Update(
        BookLoss(slots[i], layer, row.to_fetch - fetched, row.to_fetch, row.status, &deltas[i]));
    stats_.Add(slots[i], deltas[i]);
  }
  return first;
}

}  // namespace oasiskv
