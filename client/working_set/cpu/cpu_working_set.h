// The cpu backend: pages in host memory, stages on threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/selection/select.h"
#include "client/working_set/cpu/context.h"
#include "client/working_set/cpu/job.h"
#include "client/working_set/cpu/layer_state.h"
#include "client/working_set/cpu/pipeline.h"
#include "client/working_set/cpu/plan.h"
#include "client/working_set/cpu/slot_stats.h"
#include "client/working_set/cpu/staging.h"
#include "oasiskv/working_set.h"

namespace oasiskv {

// Thread contract: WorkingSet's. Every call checks all its rows before it changes anything.
class CpuWorkingSet final : public WorkingSet {
 public:
  static absl::StatusOr<std::unique_ptr<WorkingSet>> Create(const WorkingSetOptions& options);

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

  explicit CpuWorkingSet(WorkingSetContext context);

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

}  // namespace oasiskv
