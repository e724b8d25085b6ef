// The calls of a step whose transfers run in the background: Submit, AttentionDone, Wait.
#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/working_set/cpu/cpu_working_set.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv {

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
  // The block that is filling is attended as the local one; naming it asks for nothing.
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
    first.Update(Book(row, outcome));
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

}  // namespace oasiskv
