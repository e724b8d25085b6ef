// The working set in HBM: WorkingSet's step with prediction, selection and transfer on a GPU. It
// takes plain pointers and stream handles, so that an engine needs no CUDA header to include it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "oasiskv/export.h"
#include "oasiskv/sequence_source.h"
#include "oasiskv/working_set.h"

namespace oasiskv {

using GpuStream = void*;  // a cudaStream_t of the working set's device

enum class GpuQueryType : uint8_t { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };

// The engine's pages of one layer. Token t of page p of head h of request slot s lies at
//   k + physical(s, p) * page_stride + h * head_stride + t * token_stride
// and likewise from v (null for latent packing). physical(s, p) is table[s * (K + 1) + p], or
// s * (K + 1) + p without a table. Page K of a slot is its local block. Bases and strides are in
// bytes and multiples of 16. Layouts (HND or NHD, K and V apart or in one block) differ in strides
// and bases only.
struct GpuPages {
  void* k = nullptr;
  void* v = nullptr;
  int64_t page_stride = 0, head_stride = 0, token_stride = 0;
  const int32_t* table = nullptr;  // device memory, [slots][K + 1]
};

struct GpuWorkingSetOptions {
  WorkingSetOptions base;
  int device = 0;
  uint32_t max_rows = 0;  // of one step; 0: base.max_requests
  // Tokens that decoding may add to a request; Admit allocates pinned host memory for their blocks.
  // For a block completed beyond them there is no room: Error() is CAPACITY.
  uint32_t max_new_tokens = 4096;
  // By layer; empty: the working set allocates them, [slot][K + 1][head][K: token, V: token][dim]
  // (an entry as it lies in a frame).
  std::vector<GpuPages> pages;
  // The gather kernel's grid. 4 CTAs fill a link; more slow down the kernels that run beside.
  uint32_t gather_ctas = 4;
  uint32_t gather_threads = 1024;
  uint32_t gather_loads = 4;  // 16-byte loads that a thread keeps in flight: 4 or 8
  // Of the background streams, as for cudaStreamCreateWithPriority (lower runs first).
  int priority = 0;
  // Of the predict stream, where it should differ. With a lower priority than the step's stream its
  // kernels run on what the step leaves free, and the transfers after them begin later.
  std::optional<int> predict_priority;
  // Multiprocessors that scores and selection use and no others, rounded up to a part that the
  // device can split off (a multiple of 8 on compute capability 9.0). Transfers then use the
  // smallest such part, and Foreground() the rest. 0: everything shares all multiprocessors. Scores
  // then run slowly beside the step's matrix products, which leave HBM idle, and not between them.
  // This is faster where few blocks are fetched and the GPU is the limit, if the step runs on
  // Foreground() with matrix products tuned for its multiprocessors and submits a layer after its
  // attention. Needs a driver for CUDA 12.5 or newer.
  uint32_t predict_processors = 0;
  // False: every source must be in this host's memory, and a step has no kernels for remote ones.
  bool remote_sources = true;
  // Limit of pinned memory for blocks fetched from remote sources and for decoded ones; 0: none.
  uint64_t max_host_bytes = 0;
};

// One request slot at one layer as it lies in device memory.
struct GpuSlotState {
  uint64_t clock = 0;         // selections so far
  uint32_t complete = 0;      // blocks before the local one
  uint32_t local_tokens = 0;  // valid tokens of the local block
  int32_t promoted = -1;      // between select and transfer: the completed local block
  uint32_t pending = 0;       // 1 between select and the end of transfer
};

// One page that is to hold another block.
struct GpuPlanItem {
  uint16_t slot = 0, head = 0, page = 0;
  // 1: promoted, from the local page
  // 2: could not be fetched, the page is empty
  // 4: late, the page keeps what it holds
  uint16_t flags = 0;
  int32_t block = -1;
  int32_t row = 0;
};

// Device memory of one layer; addresses are fixed for the working set's life.
struct GpuLayerView {
  GpuPages pages;
  const int32_t* map = nullptr;         // [slot][head][K] -> logical block, -1: empty
  const GpuSlotState* state = nullptr;  // [slot]
  const int32_t* predicted = nullptr;   // [slot][head][K], best first, -1: padding
};

// The rows of a step, device memory at fixed addresses: row r is request slot slots[r].
struct GpuRows {
  const int32_t* slots = nullptr;  // [max_rows]
  const uint32_t* count = nullptr;
  uint32_t max_rows = 0;
};

// The multiprocessors that predict_processors leaves to the engine. The stream lives as long as the
// working set.
struct GpuForeground {
  GpuStream stream = nullptr;  // runs on these multiprocessors only; null without that option
  uint32_t processors = 0;     // all of the device's without that option
};

// What Resolve found, in device memory that all layers share: valid on `stream` until the next
// Resolve.
struct GpuResolved {
  const int32_t* blocks = nullptr;    // [slot][head][K]: the true top-K, best first, -1: padding
  const int32_t* pages = nullptr;     // [row][head][K]: page (0 .. K-1) that holds it, -1: missing
  const uint32_t* missing = nullptr;  // [row]: blocks of the top-K that no page holds
};

// What happens to a block of the true top-K that is not resident. kDemand: it is fetched before
// attention. kDrop: it is left out (its page is -1). kReport: as kDrop, and counted as skipped.
enum class GpuMissPolicy : uint8_t { kDemand = 0, kDrop = 1, kReport = 2 };

// Host copy of one slot and layer, for tests and tools.
struct GpuSnapshot {
  std::vector<int32_t> map;        // [head][K]
  std::vector<uint64_t> stamps;    // [head][K]
  std::vector<int32_t> predicted;  // [head][K]
  std::vector<std::byte> pages;    // [head][K + 1][entry], as in ResidentView
  GpuSlotState state;
};

// Thread contract: used by one thread at a time, the one that captures; Error and ClearError may be
// called from any thread.
//
// A decode step, on one stream of the engine ("the step stream", the same for all steps):
//   SetRows(slots)        when the batch has changed
//   for each layer:
//     Wait, Append, [Resolve], Submit
//     attention over View's pages
//     AttentionDone
//   EndStep
// All calls but Admit, Leave, SetRows and the copies only enqueue: they do not wait for the device
// and do not depend on what is in its memory. So a step can be captured in a CUDA graph (without
// SetRows, and with EndStep before the capture ends) and launched for any rows. Prediction,
// selection and transfer run on the working set's own streams; a graph joins them at its end.
// Equal inputs give the same plans as WorkingSet. Decoded blocks stay in the working set's own
// pinned memory: EntrySource::WriteBack is not called.
//
// Errors found on the device (a stale grant, a wait that passed its limit) are reported by Error();
// the calls themselves report wrong arguments and failed launches.
class OASISKV_EXPORT GpuWorkingSet {
 public:
  // Errors: UNSUPPORTED (the library was built without CUDA), CAPACITY (not enough HBM).
  static absl::StatusOr<std::unique_ptr<GpuWorkingSet>> Create(const GpuWorkingSetOptions& options);
  virtual ~GpuWorkingSet() = default;

  // As WorkingSet::Admit. Waits for its work, which runs on a stream of its own beside running
  // steps. A source in this host's memory (EntrySource::LocalEntries) is then read by the GPU
  // itself; blocks of other sources are copied once into pinned memory, so make such sources with
  // HostCachePolicy::kNever.
  virtual absl::StatusOr<RequestSlot> Admit(std::shared_ptr<EntrySource> source) = 0;
  // Waits for what is enqueued on the step stream, then frees the slot. Rows of later steps must
  // not name it.
  virtual absl::Status Leave(RequestSlot slot) = 0;

  // The rows of the following steps. Joins the background streams. Must not be called in a capture.
  // Errors: INVALID_ARGUMENT (more than max_rows, or a slot that is free or named twice).
  virtual absl::Status SetRows(std::span<const RequestSlot> slots, GpuStream stream) = 0;
  virtual GpuRows Rows() const = 0;

  // [row][head][head_dim] in the geometry's element type, row_stride in elements. keys null: the
  // engine wrote the token into the local page itself. When the local block is full or max_blocks
  // is reached, the token is not stored and Error() is CAPACITY.
  virtual absl::Status Append(LayerIndex layer, const void* keys, const void* values,
                              int64_t row_stride, GpuStream stream) = 0;
  // Queries that predict the next step, [row][query_head][head_dim], row_stride in elements. They
  // are read while later work of `stream` runs, and must stay unchanged until the layer's next Wait
  // is done on it (or the graph that holds the step has ended).
  virtual absl::Status Submit(LayerIndex layer, const void* queries, GpuQueryType type,
                              int64_t row_stride, GpuStream stream) = 0;
  // int32 [row][head][k] in device memory, best first; it must stay unchanged as long as queries.
  // Of each list the first K candidates (complete blocks, and the local one when it is full) count,
  // each once; -1 and all other numbers are ignored.
  virtual absl::Status SubmitTopK(LayerIndex layer, const int32_t* topk, uint32_t k,
                                  GpuStream stream) = 0;
  virtual absl::Status AttentionDone(LayerIndex layer, GpuStream stream) = 0;
  virtual absl::Status Wait(LayerIndex layer, GpuStream stream) = 0;
  // kExact: the true top-K of these queries, before attention.
  virtual absl::StatusOr<GpuResolved> Resolve(LayerIndex layer, const void* queries,
                                              GpuQueryType type, int64_t row_stride,
                                              GpuMissPolicy policy, GpuStream stream) = 0;
  // kCapped: compares the true query's top-K with the prediction made for this step.
  virtual absl::Status SampleAgreement(LayerIndex layer, const void* queries, GpuQueryType type,
                                       int64_t row_stride, GpuStream stream) = 0;
  // Ends a step. In a capture it joins the background streams; outside a capture it costs nothing.
  virtual absl::Status EndStep(GpuStream stream) = 0;

  virtual absl::StatusOr<GpuLayerView> View(LayerIndex layer) const = 0;
  virtual GpuForeground Foreground() const = 0;
  virtual const GpuWorkingSetOptions& options() const = 0;
  virtual uint32_t fetch_cap() const = 0;
  // Waits for a small copy. Counts as WorkingSet does, with two differences: `late` counts the
  // entries that had not arrived at late_deadline (a wait of one stream for another that ends in
  // time cannot be seen), and an empty prediction is not a sample of agreement.
  virtual absl::StatusOr<WorkingSetStats> RequestStats(RequestSlot slot) = 0;
  virtual absl::StatusOr<WorkingSetStats> Stats() = 0;  // of all requests so far
  // The first error on the device or of a remote source since the last ClearError. Reads host
  // memory only.
  virtual absl::Status Error() const = 0;
  virtual void ClearError() = 0;

  // Copies to the host: they wait for the step stream and the background streams.
  virtual absl::StatusOr<GpuSnapshot> Snapshot(LayerIndex layer, RequestSlot slot) = 0;
  virtual absl::StatusOr<std::vector<GpuPlanItem>> LastPlan(LayerIndex layer) = 0;
};

}  // namespace oasiskv
