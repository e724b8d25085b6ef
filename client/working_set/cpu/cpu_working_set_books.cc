// What became of predictions and fetches: the counts, and the policies on what is late or lost.
#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/working_set/cpu/cpu_working_set.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv {

absl::Status CpuWorkingSet::Book(const Row& row, const Outcome& outcome) {
  WorkingSetStats delta;
  absl::Status status = outcome.read;
  uint64_t lost = 0, wanted = 0;
  if (row.promoted != kNoBlock) delta.promoted = context_.heads();
  if (!outcome.unplanned) {  // else a stage may still be writing these
    wanted = row.to_fetch;
    lost = row.to_fetch - outcome.fetched;
    delta.predicted = row.counts.predicted;
    delta.hit = row.counts.hit;
    delta.refused_by_cap = row.counts.refused;
    delta.admitted = outcome.fetched;
    delta.bytes_moved = outcome.fetched * context_.options.geometry.entry_bytes();
    if (outcome.late) delta.late = wanted;
  }
  if (outcome.gave_up && (lost > 0 || (outcome.unplanned && row.predicts))) {
    status = MakeError(ErrorCode::kDeadlineExceeded,
                       absl::StrFormat("late_deadline of %d us has passed",
                                       context_.options.late_deadline.count() / 1000));
  }
  const LayerIndex layer(row.state->layer);
  absl::Status result = BookLoss(row.slot, layer, lost, wanted, status, &delta);
  if (!outcome.write_back.ok()) {
    if (context_.options.loss == LossPolicy::kDegrade) {
      ++delta.degraded;
    } else {
      result.Update(Annotate(outcome.write_back, absl::StrFormat("slot %d, layer %d",
                                                                 row.slot.value(), layer.value())));
    }
  }
  stats_.Add(row.slot, delta);
  return result;
}

absl::Status CpuWorkingSet::BookLoss(RequestSlot slot, LayerIndex layer, uint64_t lost,
                                     uint64_t wanted, const absl::Status& status,
                                     WorkingSetStats* delta) {
  if (status.ok()) {
    if (wanted > 0) slots_[slot.value()].source_failed = false;
    return absl::OkStatus();
  }
  if (context_.options.late == LatePolicy::kSkip &&
      ErrorCodeOf(status) == ErrorCode::kDeadlineExceeded) {
    delta->skipped += lost;
    return absl::OkStatus();
  }
  if (context_.options.loss == LossPolicy::kDegrade) {
    delta->skipped += lost;
    ++delta->degraded;
    slots_[slot.value()].source_failed = true;
    return absl::OkStatus();
  }
  return Annotate(status, absl::StrFormat("slot %d, layer %d: %d of %d entries were not fetched",
                                          slot.value(), layer.value(), lost, wanted));
}

void CpuWorkingSet::CountAgreement(std::span<const int32_t> truth, LayerState* state,
                                   WorkingSetStats* delta) {
  if (!state->predicted_valid) return;
  state->predicted_valid = false;  // one sample of each prediction
  const uint32_t k = context_.resident();
  for (uint32_t h = 0; h < context_.heads(); ++h) {
    const std::span<const int32_t> list = truth.subspan(size_t{h} * k, k);
    const auto size = std::find(list.begin(), list.end(), kNoBlock) - list.begin();
    if (size == 0) continue;
    ++delta->agreement_samples;
    delta->agreement_sum +=
        static_cast<double>(selector_.CountCommon(
            std::span<const int32_t>(state->predicted).subspan(size_t{h} * k, k), list)) /
        static_cast<double>(size);
  }
}

absl::Status CpuWorkingSet::SampleAgreement(LayerIndex layer, std::span<const RequestSlot> slots,
                                            const float* queries) {
  OASISKV_RETURN_IF_ERROR(CheckRows(layer, slots));
  if (context_.options.mode != SelectionMode::kCapped) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "SampleAgreement is of SelectionMode::kCapped; in kExact Resolve samples");
  }
  OASISKV_RETURN_IF_ERROR(CheckQueries("SampleAgreement", layer, slots, queries));
  const Geometry& geometry = context_.options.geometry;
  std::vector<int32_t> truth(size_t{context_.heads()} * context_.resident());
  for (size_t i = 0; i < slots.size(); ++i) {
    LayerState& state = State(layer, slots[i]);
    if (!state.predicted_valid) continue;
    ranker_.Rank(state.layer, state.slot, state.complete,
                 queries + i * context_.options.query_heads * geometry.head_dim, truth.data());
    WorkingSetStats delta;
    CountAgreement(truth, &state, &delta);
    stats_.Add(slots[i], delta);
  }
  return absl::OkStatus();
}

}  // namespace oasiskv
