// The cpu backend: pages in host memory, stages on threads.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "client/selection/select.h"
#include "client/selection/summary.h"
#include "client/working_set/cpu/admission.h"
#include "client/working_set/cpu/job.h"
#include "client/working_set/cpu/layer_state.h"
#include "client/working_set/cpu/pages.h"
#include "client/working_set/cpu/pipeline.h"
#include "client/working_set/cpu/plan.h"
#include "client/working_set/cpu/slot_stats.h"
#include "client/working_set/cpu/staging.h"
#include "client/working_set/options.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"
#include "oasiskv/working_set.h"

namespace oasiskv {
namespace {

// Thread contract: WorkingSet's. Every call checks all its rows before it changes anything.
class CpuWorkingSet final : public WorkingSet {
 public:
  explicit CpuWorkingSet(WorkingSetContext context);

  absl::StatusOr<RequestSlot> Admit(std::shared_ptr<EntrySource> source) override;
  absl::Status Leave(RequestSlot slot) override;
  absl::Status Append(LayerIndex layer, std::span<const RequestSlot> slots, const std::byte* keys,
                      const std::byte* values) override;
  absl::Status Submit(LayerIndex layer, std::span<const RequestSlot> slots,
                      const float* queries) override;
  absl::Status SubmitTopK(LayerIndex layer, std::span<const RequestSlot> slots, const int32_t* topk,
                          uint32_t k) override;
  absl::Status AttentionDone(LayerIndex layer, std::span<const RequestSlot> slots) override;
  absl::Status Wait(LayerIndex layer, std::span<const RequestSlot> slots) override;
  absl::Status Resolve(LayerIndex layer, std::span<const RequestSlot> slots,
                       const float* queries) override;
  absl::Status SampleAgreement(LayerIndex layer, std::span<const RequestSlot> slots,
                               const float* queries) override;
  absl::StatusOr<ResidentView> View(LayerIndex layer, RequestSlot slot) const override;
  const WorkingSetOptions& options() const override { return context_.options; }
  uint32_t fetch_cap() const override { return context_.cap; }
  WorkingSetStats Stats() const override { return stats_.Total(); }
  WorkingSetStats RequestStats(RequestSlot slot) const override { return stats_.OfSlot(slot); }

 private:
  struct Slot {
    std::shared_ptr<EntrySource> source;  // null: free
    bool source_failed = false;           // kDegrade: ask its health before reading again
  };

  LayerState& State(LayerIndex layer, RequestSlot slot) {
    return states_[size_t{slot.value()} * context_.options.geometry.layers + layer.value()];
  }
  const LayerState& State(LayerIndex layer, RequestSlot slot) const {
    return states_[size_t{slot.value()} * context_.options.geometry.layers + layer.value()];
  }

  // OUT_OF_RANGE for the layer, INVALID_ARGUMENT for a slot that is free or named twice.
  absl::Status CheckRows(LayerIndex layer, std::span<const RequestSlot> slots) const;
  // CheckRows, and WRONG_STATE naming `call` where a job is pending: `call` belongs between Wait
  // and Submit.
  absl::Status CheckIdle(absl::string_view call, LayerIndex layer,
                         std::span<const RequestSlot> slots) const;
  static absl::Status CheckQueries(absl::string_view call, LayerIndex layer,
                                   std::span<const RequestSlot> slots, const float* queries);
  bool LocalFull(const LayerState& state) const {
    return state.local_tokens == context_.options.geometry.block_tokens;
  }

  // A job with one row for each slot; a full local block becomes the row's promotion.
  std::shared_ptr<Job> NewJob(LayerIndex layer, std::span<const RequestSlot> slots);
  void SubmitJob(std::shared_ptr<Job> job);
  absl::Status TakeTopK(LayerIndex layer, size_t row, const int32_t* topk, uint32_t k, Row* out);
  // Counts what became of a row and applies the policies; an error under LossPolicy::kFail.
  absl::Status CountOutcome(const Row& row, const Outcome& outcome);
  absl::Status ApplyLossPolicy(RequestSlot slot, LayerIndex layer, uint64_t lost, uint64_t wanted,
                               const absl::Status& status, WorkingSetStats* delta);
  void CountAgreement(std::span<const int32_t> truth, LayerState* state, WorkingSetStats* delta);

  const WorkingSetContext context_;
  std::vector<Slot> slots_;
  SlotStats stats_;
  StagingPool staging_;             // outlives the jobs that states and pipeline hold
  std::vector<LayerState> states_;  // [slot][layer]; outlive the pipeline, whose rows point at them
  Selector selector_;
  Ranker ranker_;
  Pipeline pipeline_;
};

CpuWorkingSet::CpuWorkingSet(WorkingSetContext context)
    : context_(std::move(context)),
      slots_(context_.options.max_requests),
      stats_(context_.options.max_requests),
      states_(size_t{context_.options.max_requests} * context_.options.geometry.layers),
      selector_(context_.options.max_blocks),
      ranker_(context_),
      pipeline_(context_, &staging_) {
  for (size_t i = 0; i < states_.size(); ++i) {
    states_[i].slot = static_cast<uint32_t>(i / context_.options.geometry.layers);
    states_[i].layer = static_cast<uint32_t>(i % context_.options.geometry.layers);
  }
}

absl::Status CpuWorkingSet::CheckRows(LayerIndex layer, std::span<const RequestSlot> slots) const {
  if (layer.value() >= context_.options.geometry.layers) {
    return MakeError(ErrorCode::kOutOfRange,
                     absl::StrFormat("layer %d is not one of the %d", layer.value(),
                                     context_.options.geometry.layers));
  }
  for (size_t i = 0; i < slots.size(); ++i) {
    const uint32_t slot = slots[i].value();
    if (slot >= slots_.size() || slots_[slot].source == nullptr) {
      return MakeError(ErrorCode::kInvalidArgument,
                       absl::StrFormat("row %d: slot %d holds no request; slots come from Admit "
                                       "and end with Leave",
                                       i, slot));
    }
    if (std::find(slots.begin(), slots.begin() + i, slots[i]) != slots.begin() + i) {
      return MakeError(ErrorCode::kInvalidArgument,
                       absl::StrFormat("row %d: slot %d is named twice", i, slot));
    }
  }
  return absl::OkStatus();
}

absl::Status CpuWorkingSet::CheckIdle(absl::string_view call, LayerIndex layer,
                                      std::span<const RequestSlot> slots) const {
  OASISKV_RETURN_IF_ERROR(CheckRows(layer, slots));
  for (RequestSlot slot : slots) {
    if (State(layer, slot).job == nullptr) continue;
    return MakeError(ErrorCode::kWrongState,
                     absl::StrFormat("%s(layer %d): slot %d has a transfer pending; the order of a "
                                     "step is Wait, Append, Resolve, Submit, View, AttentionDone",
                                     call, layer.value(), slot.value()));
  }
  return absl::OkStatus();
}

absl::Status CpuWorkingSet::CheckQueries(absl::string_view call, LayerIndex layer,
                                         std::span<const RequestSlot> slots, const float* queries) {
  if (slots.empty() || queries != nullptr) return absl::OkStatus();
  return MakeError(ErrorCode::kInvalidArgument,
                   absl::StrFormat("%s(layer %d): queries is null", call, layer.value()));
}

absl::StatusOr<RequestSlot> CpuWorkingSet::Admit(std::shared_ptr<EntrySource> source) {
  OASISKV_RETURN_IF_ERROR(CheckSource(context_.options, source.get()));
  const auto free = std::find_if(slots_.begin(), slots_.end(),
                                 [](const Slot& slot) { return slot.source == nullptr; });
  if (free == slots_.end()) {
    return MakeError(ErrorCode::kCapacity,
                     absl::StrFormat("Admit: all %d request slots are taken; Leave one or raise "
                                     "max_requests",
                                     slots_.size()));
  }
  const RequestSlot slot(static_cast<uint32_t>(free - slots_.begin()));
  const std::span<LayerState> states(&State(LayerIndex(0), slot), context_.options.geometry.layers);
  for (LayerState& state : states) state.Clear(context_.heads(), context_.resident());
  auto bytes = Admission(context_, *source, states, &staging_);
  if (!bytes.ok()) return Annotate(bytes.status(), "Admit");
  *free = {.source = std::move(source)};
  stats_.Reset(slot);
  stats_.Add(slot, {.admission_bytes = *bytes});
  return slot;
}

absl::Status CpuWorkingSet::Leave(RequestSlot slot) {
  OASISKV_RETURN_IF_ERROR(CheckRows(LayerIndex(0), std::span(&slot, 1)));
  for (uint32_t l = 0; l < context_.options.geometry.layers; ++l) {
    LayerState& state = State(LayerIndex(l), slot);
    if (state.job == nullptr) continue;
    const Outcome outcome = pipeline_.Drop(state.row);
    // Nobody asks what a dropped row would have become, nor for its errors.
    if (!outcome.dropped) CountOutcome(*state.row, outcome).IgnoreError();
  }
  pipeline_.WaitReleased(slot);
  for (uint32_t l = 0; l < context_.options.geometry.layers; ++l) {
    State(LayerIndex(l), slot).Clear(context_.heads(), context_.resident());
  }
  slots_[slot.value()] = Slot();
  return absl::OkStatus();
}

absl::Status CpuWorkingSet::Append(LayerIndex layer, std::span<const RequestSlot> slots,
                                   const std::byte* keys, const std::byte* values) {
  OASISKV_RETURN_IF_ERROR(CheckIdle("Append", layer, slots));
  const Geometry& geometry = context_.options.geometry;
  const bool latent = geometry.packing == Packing::kLatent;
  if (!slots.empty() && (keys == nullptr || (values == nullptr && !latent))) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrFormat("Append(layer %d): %s is null", layer.value(),
                                     keys == nullptr ? "keys" : "values"));
  }
  for (RequestSlot slot : slots) {
    const LayerState& state = State(layer, slot);
    if (LocalFull(state)) {
      return MakeError(ErrorCode::kWrongState,
                       absl::StrFormat("Append(layer %d): slot %d's local block is full; "
                                       "AttentionDone and Wait promote it",
                                       layer.value(), slot.value()));
    }
    if (state.complete >= context_.options.max_blocks) {
      return MakeError(ErrorCode::kCapacity,
                       absl::StrFormat("Append(layer %d): slot %d holds max_blocks (%d) blocks",
                                       layer.value(), slot.value(), context_.options.max_blocks));
    }
  }
  const uint64_t key_bytes = geometry.key_bytes();
  for (RequestSlot slot : slots) {
    LayerState& state = State(layer, slot);
    const uint64_t at = state.local_tokens * key_bytes;
    ++state.local_tokens;
    for (uint32_t h = 0; h < context_.heads(); ++h) {
      std::byte* entry = context_.pool.Page(layer.value(), slot.value(), h, context_.resident());
      std::memcpy(entry + at, keys, key_bytes);
      keys += key_bytes;
      if (!latent) {
        std::memcpy(entry + geometry.half_entry_bytes() + at, values, key_bytes);
        values += key_bytes;
      }
      if (!LocalFull(state)) continue;
      std::byte* const summary = context_.pool.Summaries(layer.value(), slot.value(), h) +
                                 uint64_t{state.complete} * geometry.summary_bytes();
      SummariseKeys(geometry.element_type, geometry.head_dim, entry,
                    static_cast<int64_t>(key_bytes), geometry.block_tokens, summary);
      RoundSummary(context_.options, summary);
    }
  }
  return absl::OkStatus();
}

std::shared_ptr<Job> CpuWorkingSet::NewJob(LayerIndex layer, std::span<const RequestSlot> slots) {
  auto job = std::make_shared<Job>();
  job->layer = layer;
  job->deadline = std::chrono::steady_clock::now() + context_.options.late_deadline;
  job->rows.resize(slots.size());
  for (size_t i = 0; i < slots.size(); ++i) {
    LayerState& state = State(layer, slots[i]);
    Row& row = job->rows[i];
    row.slot = slots[i];
    row.state = &state;
    row.source = slots_[slots[i].value()].source;
    row.check_health = slots_[slots[i].value()].source_failed;
    row.candidates = state.complete + (LocalFull(state) ? 1 : 0);
    if (LocalFull(state)) row.promoted = static_cast<int32_t>(state.complete);
    row.now = state.clock + 1;
  }
  return job;
}

void CpuWorkingSet::SubmitJob(std::shared_ptr<Job> job) {
  for (Row& row : job->rows) {
    ++row.state->clock;
    row.state->job = job;
    row.state->row = &row;
    if (row.predicts) stats_.Add(row.slot, {.steps = 1});
  }
  pipeline_.Submit(std::move(job));
}

absl::Status CpuWorkingSet::Submit(LayerIndex layer, std::span<const RequestSlot> slots,
                                   const float* queries) {
  OASISKV_RETURN_IF_ERROR(CheckIdle("Submit", layer, slots));
  OASISKV_RETURN_IF_ERROR(CheckQueries("Submit", layer, slots, queries));
  if (slots.empty()) return absl::OkStatus();
  std::shared_ptr<Job> job = NewJob(layer, slots);
  const size_t each = size_t{context_.options.query_heads} * context_.options.geometry.head_dim;
  job->queries.assign(queries, queries + each * slots.size());
  for (size_t i = 0; i < slots.size(); ++i) {
    job->rows[i].predicts = true;
    job->rows[i].queries = job->queries.data() + i * each;
  }
  SubmitJob(std::move(job));
  return absl::OkStatus();
}

absl::Status CpuWorkingSet::TakeTopK(LayerIndex layer, size_t row, const int32_t* topk, uint32_t k,
                                     Row* out) {
  out->predicts = true;
  out->predicted.assign(size_t{context_.heads()} * context_.resident(), kNoBlock);
  std::vector<bool> taken(out->candidates);
  // The block that is filling is attended as the local one, so naming it changes nothing.
  const int64_t local = LocalFull(*out->state) ? -1 : int64_t{out->state->complete};
  for (uint32_t h = 0; h < context_.heads(); ++h) {
    const std::span<int32_t> list =
        std::span(out->predicted).subspan(size_t{h} * context_.resident(), context_.resident());
    std::fill(taken.begin(), taken.end(), false);
    uint32_t count = 0;
    for (uint32_t i = 0; i < k; ++i) {
      const int32_t block = topk[size_t{h} * k + i];
      if (block == kNoBlock || (block >= 0 && block == local)) continue;
      if (block < 0 || block >= static_cast<int64_t>(out->candidates)) {
        return MakeError(ErrorCode::kOutOfRange,
                         absl::StrFormat("SubmitTopK(layer %d): row %d, head %d, item %d: block %d "
                                         "is not one of the %d complete ones",
                                         layer.value(), row, h, i, block, out->candidates));
      }
      if (taken[block] || count == list.size()) continue;
      taken[block] = true;
      list[count++] = block;
    }
  }
  return absl::OkStatus();
}

absl::Status CpuWorkingSet::SubmitTopK(LayerIndex layer, std::span<const RequestSlot> slots,
                                       const int32_t* topk, uint32_t k) {
  OASISKV_RETURN_IF_ERROR(CheckIdle("SubmitTopK", layer, slots));
  if (slots.empty()) return absl::OkStatus();
  if (topk == nullptr && k > 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrFormat("SubmitTopK(layer %d): topk is null", layer.value()));
  }
  std::shared_ptr<Job> job = NewJob(layer, slots);
  for (size_t i = 0; i < slots.size(); ++i) {
    OASISKV_RETURN_IF_ERROR(TakeTopK(layer, i, topk + i * context_.heads() * k, k, &job->rows[i]));
  }
  SubmitJob(std::move(job));
  return absl::OkStatus();
}

absl::Status CpuWorkingSet::AttentionDone(LayerIndex layer, std::span<const RequestSlot> slots) {
  OASISKV_RETURN_IF_ERROR(CheckRows(layer, slots));
  std::vector<Row*> submitted;
  std::vector<RequestSlot> full;
  for (RequestSlot slot : slots) {
    LayerState& state = State(layer, slot);
    if (state.job != nullptr && state.row->attention_done) continue;  // called twice
    const uint64_t used = MarkAttended(&state);
    if (used > 0) {
      stats_.Add(slot, {.bytes_used = used * context_.options.geometry.entry_bytes()});
    }
    state.predicted_valid = false;
    if (state.job != nullptr) {
      submitted.push_back(state.row);
    } else if (LocalFull(state)) {
      full.push_back(slot);
    }
  }
  if (!full.empty()) {  // nothing was predicted, but the full block must make room
    std::shared_ptr<Job> job = NewJob(layer, full);
    for (Row& row : job->rows) row.attention_done = true;
    SubmitJob(std::move(job));
  }
  if (!submitted.empty()) pipeline_.AttentionDone(submitted);
  return absl::OkStatus();
}

absl::Status CpuWorkingSet::Wait(LayerIndex layer, std::span<const RequestSlot> slots) {
  OASISKV_RETURN_IF_ERROR(CheckRows(layer, slots));
  for (RequestSlot slot : slots) {
    const LayerState& state = State(layer, slot);
    if (state.job == nullptr || state.row->attention_done) continue;
    return MakeError(ErrorCode::kWrongState,
                     absl::StrFormat("Wait(layer %d): slot %d's transfer may not begin before "
                                     "AttentionDone(layer %d)",
                                     layer.value(), slot.value(), layer.value()));
  }
  absl::Status first;
  for (RequestSlot slot : slots) {
    LayerState& state = State(layer, slot);
    if (state.job == nullptr) continue;
    Row& row = *state.row;
    const Outcome outcome = pipeline_.Settle(*state.job, &row);
    first.Update(CountOutcome(row, outcome));
    state.predicted_valid = row.predicts && !outcome.unplanned;
    if (state.predicted_valid) state.predicted.swap(row.predicted);
    if (row.promoted != kNoBlock) {
      ++state.complete;
      state.local_tokens = 0;
    }
    state.row = nullptr;
    state.job.reset();
  }
  return first;
}

// The true selection, fetched before attention in the calling thread.
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
    first.Update(ApplyLossPolicy(slots[i], layer, row.to_fetch - fetched, row.to_fetch, row.status,
                                 &deltas[i]));
    stats_.Add(slots[i], deltas[i]);
  }
  return first;
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

absl::StatusOr<ResidentView> CpuWorkingSet::View(LayerIndex layer, RequestSlot slot) const {
  OASISKV_RETURN_IF_ERROR(CheckRows(layer, std::span(&slot, 1)));
  const LayerState& state = State(layer, slot);
  if (state.job != nullptr && state.row->attention_done) {
    return MakeError(ErrorCode::kWrongState,
                     absl::StrFormat("View(layer %d): slot %d's pages may be changing; Wait first",
                                     layer.value(), slot.value()));
  }
  return ResidentView{.pages = context_.pool.Pages(layer.value(), slot.value()),
                      .map = state.map.data(),
                      .local_tokens = state.local_tokens,
                      .local_block = BlockIndex(state.complete)};
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

absl::Status CpuWorkingSet::CountOutcome(const Row& row, const Outcome& outcome) {
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
  absl::Status result = ApplyLossPolicy(row.slot, layer, lost, wanted, status, &delta);
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

absl::Status CpuWorkingSet::ApplyLossPolicy(RequestSlot slot, LayerIndex layer, uint64_t lost,
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

}  // namespace

absl::StatusOr<std::unique_ptr<WorkingSet>> WorkingSet::Create(const WorkingSetOptions& options) {
  OASISKV_RETURN_IF_ERROR(CheckOptions(options));
  OASISKV_ASSIGN_OR_RETURN(PagePool pool,
                           PagePool::Create(options.geometry, options.resident_blocks,
                                            options.max_requests, options.max_blocks));
  WorkingSetContext context{.options = options,
                            .group = options.query_heads / options.geometry.kv_heads,
                            .cap = FetchCap(options),
                            .pool = std::move(pool)};
  return std::make_unique<CpuWorkingSet>(std::move(context));
}

}  // namespace oasiskv
