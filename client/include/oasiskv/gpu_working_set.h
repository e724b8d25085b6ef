// The working set in HBM: WorkingSet's step with prediction, selection and transfer on a GPU. Plain
// pointers and stream handles, so that an engine needs no header of CUDA for it.
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
//   k + physical(s, p) * page_stride + h * head_stride + t * token_stride      (bytes)
// and v likewise (null for latent packing); physical(s, p) is table[s * (K + 1) + p], or
// s * (K + 1) + p without a table. Page K of a slot is its local block. Bases and strides are
// multiples of 16. HND and NHD, K and V apart or in one block differ in strides and bases only.
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
  // Tokens that decoding may add to a request; pinned host memory for their blocks is taken at
  // Admit. A block completed beyond them has nowhere to go: Error() is CAPACITY.
  uint32_t max_new_tokens = 4096;
  // By layer; empty: the working set allocates them, [slot][K + 1][head][K: token, V: token][dim]
  // (an entry as it lies in a frame).
  std::vector<GpuPages> pages;
  // The gather kernel's grid. 4 CTAs fill a link; more disturb the kernels beside.
  uint32_t gather_ctas = 4;
  uint32_t gather_threads = 1024;
  uint32_t gather_loads = 4;  // 16-byte loads in flight of a thread: 4 or 8
  // Of the background streams, as cudaStreamCreateWithPriority has it (lower goes first).
  int priority = 0;
  // Of the predict stream, where it is to differ: behind the step's own stream its kernels run in
  // what that leaves free, and the transfers they lead to begin later.
  std::optional<int> predict_priority;
  // Multiprocessors that scores and selection keep to, rounded up to what the device can part off
  // (whole eights on compute capability 9.0); transfers then keep to the smallest such part, and
  // Foreground() to the others. 0: all share all. Scores then run slowly beside the step's
  // matrix products, whose bytes leave HBM idle, and not between them: worth it where few blocks
  // are fetched and the GPU is the limit, if the step runs on Foreground() with products made for
  // its multiprocessors and submits a layer after its attention. Needs a driver of CUDA 12.5.
  uint32_t predict_processors = 0;
  // False: every source must be this host's memory, and a step carries no kernels for the others.
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
  // 1: promoted, from the local page; 2: could not be brought, the page is empty; 4: late, the page
  // keeps what it holds.
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

// What predict_processors leaves to the engine; the stream lives as long as the working set.
struct GpuForeground {
  GpuStream stream = nullptr;  // on these multiprocessors alone, for the step; null: no such option
  uint32_t processors = 0;     // all of the device's without that option
};

// What Resolve found, device memory of the layer-independent scratch: valid on `stream` until the
// next Resolve.
struct GpuResolved {
  const int32_t* blocks = nullptr;    // [slot][head][K]: the true top-K, best first, -1: padding
  const int32_t* pages = nullptr;     // [row][head][K]: page (0 .. K-1) that holds it, -1: missing
  const uint32_t* missing = nullptr;  // [row]: blocks of the top-K that no page holds
};

// A block of the true top-K that is not resident: kDemand fetches it before attention; kDrop leaves
// it out (pages -1); kReport too, and it is counted as skipped.
enum class GpuMissPolicy : uint8_t { kDemand = 0, kDrop = 1, kReport = 2 };

// Host copy of one slot and layer, for tests and tools.
struct GpuSnapshot {
  std::vector<int32_t> map;        // [head][K]
  std::vector<uint64_t> stamps;    // [head][K]
  std::vector<int32_t> predicted;  // [head][K]
  std::vector<std::byte> pages;    // [head][K + 1][entry]: as ResidentView has them
  GpuSlotState state;
};

// Thread contract: used by one thread at a time, the one that captures; Error and ClearError may be
// called from any.
//
// A decode step, on one stream of the engine's ("the step stream"; all steps on the same one):
//   SetRows(slots)                    when the batch has changed
//   per layer: Wait, Append, [Resolve], Submit, attention over View's pages, AttentionDone
//   EndStep
// Everything but Admit, Leave, SetRows and the copies only enqueues: no host synchronization, and
// nothing depends on what is on the device, so that a step can be captured in a CUDA graph (SetRows
// stays outside; EndStep comes before the capture ends) and launched for any rows. predict, select
// and transfer run on streams of the working set's own; a graph joins them at its end.
// Equal inputs give the plans of WorkingSet. Decoded blocks stay in pinned memory of the working
// set's own: EntrySource::WriteBack is not called.
//
// Errors that show on the device (a stale grant, a wait that passed its limit) come out of Error();
// the calls themselves report wrong arguments and failed launches.
class OASISKV_EXPORT GpuWorkingSet {
 public:
  // UNSUPPORTED where the library was built without CUDA; CAPACITY when HBM does not suffice.
  static absl::StatusOr<std::unique_ptr<GpuWorkingSet>> Create(const GpuWorkingSetOptions& options);
  virtual ~GpuWorkingSet() = default;

  // As WorkingSet::Admit; host-synchronous, on a stream of its own beside running steps. A source
  // whose memory is this host's (EntrySource::LocalEntries) is read by the GPU itself from then on;
  // of others the blocks come by way of pinned memory, each once: make those with
  // HostCachePolicy::kNever.
  virtual absl::StatusOr<RequestSlot> Admit(std::shared_ptr<EntrySource> source) = 0;
  // Waits for what is enqueued on the step stream, then frees the slot. The rows must not name it
  // in later steps.
  virtual absl::Status Leave(RequestSlot slot) = 0;

  // The rows of the following steps. Joins the background streams. Not in a capture.
  // INVALID_ARGUMENT beyond max_rows, and for a slot that is free or named twice.
  virtual absl::Status SetRows(std::span<const RequestSlot> slots, GpuStream stream) = 0;
  virtual GpuRows Rows() const = 0;

  // [row][head][head_dim] in the geometry's element type, row_stride in elements. keys null: the
  // engine wrote the token into the local page itself. A token that finds the local block full or
  // max_blocks reached is not stored: Error() is CAPACITY.
  virtual absl::Status Append(LayerIndex layer, const void* keys, const void* values,
                              int64_t row_stride, GpuStream stream) = 0;
  // Queries that predict the next step, [row][query_head][head_dim], row_stride in elements. They
  // are read beside what follows on `stream`, and must stay until the layer's next Wait has passed
  // there (or the graph has ended that holds the step).
  virtual absl::Status Submit(LayerIndex layer, const void* queries, GpuQueryType type,
                              int64_t row_stride, GpuStream stream) = 0;
  // int32 [row][head][k] in device memory, best first, which stays as queries do. Only the first K
  // of a list's candidates (complete blocks, and the local one when it is full) count, each once;
  // -1 and all other numbers are passed over.
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
  // Ends a step. In a capture it joins the background streams; outside it costs nothing.
  virtual absl::Status EndStep(GpuStream stream) = 0;

  virtual absl::StatusOr<GpuLayerView> View(LayerIndex layer) const = 0;
  virtual GpuForeground Foreground() const = 0;
  virtual const GpuWorkingSetOptions& options() const = 0;
  virtual uint32_t fetch_cap() const = 0;
  // Host-synchronous (a small copy). Counted as WorkingSet counts, but for `late`: here those are
  // the entries that had not come when late_deadline had passed. What the step stream waited for
  // and got in time is not known: one stream's wait for another leaves no trace. Nor is an empty
  // prediction a sample of agreement.
  virtual absl::StatusOr<WorkingSetStats> RequestStats(RequestSlot slot) = 0;
  virtual absl::StatusOr<WorkingSetStats> Stats() = 0;  // of all requests so far
  // The first thing that went wrong on the device or in a remote source since the last ClearError.
  // Reads host memory only.
  virtual absl::Status Error() const = 0;
  virtual void ClearError() = 0;

  // Host-synchronous copies: they wait for the step stream and the background streams.
  virtual absl::StatusOr<GpuSnapshot> Snapshot(LayerIndex layer, RequestSlot slot) = 0;
  virtual absl::StatusOr<std::vector<GpuPlanItem>> LastPlan(LayerIndex layer) = 0;
};

}  // namespace oasiskv
