// The decode side's working set: resident blocks per request, layer and KV head, and the step that
// keeps them right.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "oasiskv/export.h"
#include "oasiskv/geometry.h"
#include "oasiskv/selection.h"
#include "oasiskv/sequence_source.h"

namespace oasiskv {

struct WorkingSetOptions {
  Geometry geometry;               // of this decode rank
  uint32_t query_heads = 0;        // of this rank; a multiple of kv_heads
  uint32_t resident_blocks = 128;  // K: pages of a head and layer
  // Blocks that a prediction and Resolve rank, at most K; 0: K. The pages beyond them keep blocks
  // that were ranked before, so that a block that drops out and comes back is not fetched again.
  // Attention reads all pages.
  uint32_t ranked_blocks = 0;
  // At most C = floor(fetch_ratio x ranked blocks) blocks change per head, layer and step (kCapped).
  double fetch_ratio = 0.05;
  SelectionMode mode = SelectionMode::kCapped;
  GroupCombine combine = GroupCombine::kMax;
  double bound_weight = kDefaultBoundWeight;  // in [0, 1], see selection.h
  SummaryType summaries = SummaryType::kAsKeys;
  LatePolicy late = LatePolicy::kWait;
  LossPolicy loss = LossPolicy::kFail;
  // Of a transfer, from its submission.
  std::chrono::nanoseconds late_deadline = std::chrono::seconds(5);
  uint32_t max_requests = 1;   // request slots
  uint32_t max_blocks = 8192;  // a request's prefill and decoded blocks together
};

struct WorkingSetStats {
  uint64_t steps = 0;            // Submit calls x rows
  uint64_t predicted = 0;        // blocks in predicted top-Ks
  uint64_t hit = 0;              // predicted and resident already
  uint64_t admitted = 0;         // fetched into a resident page
  uint64_t promoted = 0;         // completed local blocks made resident without a fetch
  uint64_t refused_by_cap = 0;   // predicted, missing, and over the cap
  uint64_t late = 0;             // not there when Wait was called
  uint64_t skipped = 0;          // late and given up (LatePolicy::kSkip), or failed under kDegrade
  uint64_t degraded = 0;         // row-layers served without their source
  uint64_t demanded = 0;         // exact mode: fetched by Resolve
  uint64_t bytes_moved = 0;      // into resident pages from sources
  uint64_t bytes_used = 0;       // of bytes_moved: attended in at least one step before eviction
  uint64_t admission_bytes = 0;  // summaries, union blocks and local blocks pulled by Admit
  uint64_t agreement_samples = 0;  // (row, layer, head) compared
  double agreement_sum = 0;        // sum of |predicted top-K and true top-K| / |true top-K|
};

// The resident pages of one request and layer. Page p < K of head h holds the entry of logical
// block map[h * K + p] (-1: empty); page K holds the local block, of which local_tokens tokens are
// valid.
struct ResidentView {
  const std::byte* pages = nullptr;  // [head][K + 1][entry]
  const int32_t* map = nullptr;      // [head][K]
  uint32_t local_tokens = 0;
  BlockIndex local_block;
};

// Thread contract: one thread drives the step (Admit, Leave, Append, Submit, AttentionDone, Wait,
// Resolve, View); Stats may be called from any thread. Prediction, selection and transfer run on
// the working set's own threads.
//
// A decode step, per layer, for the rows (requests) of the batch:
//   Wait(layer)           the transfer that the step before submitted for this step is done
//                         (or late: see LatePolicy)
//   Append(layer, k, v)   the step's new token enters the local block; a full local block was
//                         promoted to a resident page before
//   Resolve(layer, q)     kExact only: the true top-K becomes resident
//   Submit(layer, q')     q' predicts the next step: score -> top-K -> select are started;
//                         pages are not touched yet
//   View(layer)           attention reads the pages
//   AttentionDone(layer)  from here on the transfer for the next step may overwrite victims
// Equal inputs give equal plans, whatever the timing (under LatePolicy::kWait).
class OASISKV_EXPORT WorkingSet {
 public:
  static absl::StatusOr<std::unique_ptr<WorkingSet>> Create(const WorkingSetOptions& options);
  virtual ~WorkingSet() = default;

  // Pulls the summaries and the blocks of the first step's top-K (for a source that caches, whole
  // layer-blocks of the union over heads; otherwise each head's own entries), fills the resident
  // pages and the local block, and returns the slot it took. Without a first top-K the most recent
  // blocks become resident. Errors: CAPACITY (no free slot, or too many blocks),
  // GEOMETRY_MISMATCH, and those of the source.
  virtual absl::StatusOr<RequestSlot> Admit(std::shared_ptr<EntrySource> source) = 0;
  // Ends a request: waits for its transfers, drops its source.
  virtual absl::Status Leave(RequestSlot slot) = 0;

  // K and V of each row's new token, [row][head][head_dim] in the geometry's element type (values
  // is ignored for latent packing).
  virtual absl::Status Append(LayerIndex layer, std::span<const RequestSlot> slots,
                              const std::byte* keys, const std::byte* values) = 0;
  // Predicted queries for the next step, float32 [row][query_head][head_dim].
  virtual absl::Status Submit(LayerIndex layer, std::span<const RequestSlot> slots,
                              const float* queries) = 0;
  // The same with a ready top-K list, for engines that have their own indexer: int32
  // [row][head][k], -1 for padding.
  virtual absl::Status SubmitTopK(LayerIndex layer, std::span<const RequestSlot> slots,
                                  const int32_t* topk, uint32_t k) = 0;
  virtual absl::Status AttentionDone(LayerIndex layer, std::span<const RequestSlot> slots) = 0;
  virtual absl::Status Wait(LayerIndex layer, std::span<const RequestSlot> slots) = 0;
  // Exact mode: makes the true top-K of these queries, float32 [row][query_head][head_dim],
  // resident now, and samples its agreement with the pending prediction.
  virtual absl::Status Resolve(LayerIndex layer, std::span<const RequestSlot> slots,
                               const float* queries) = 0;
  // Capped mode: compares the top-K of the true queries with the prediction that was made for this
  // step; changes no page.
  virtual absl::Status SampleAgreement(LayerIndex layer, std::span<const RequestSlot> slots,
                                       const float* queries) = 0;

  virtual absl::StatusOr<ResidentView> View(LayerIndex layer, RequestSlot slot) const = 0;
  virtual const WorkingSetOptions& options() const = 0;
  virtual uint32_t fetch_cap() const = 0;  // C
  virtual WorkingSetStats Stats() const = 0;
  virtual WorkingSetStats RequestStats(RequestSlot slot) const = 0;
};

}  // namespace oasiskv
