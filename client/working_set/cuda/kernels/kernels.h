// The kernels of the working set on a GPU. Every function enqueues on `stream`, allocates nothing,
// waits for nothing and may be captured in a CUDA graph; it returns the launch's error text, or
// null.
#pragma once

#include <cstdint>

#include "client/working_set/cuda/kernels/layout.h"

namespace oasiskv::gpu {

using LaunchError = const char*;

enum class QueryType : uint8_t { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };

// predict: scores all candidates of each (row, head) and writes the shape.ranked best, best first,
// to mem.predicted. `queries` is [row][kv_heads * group][head_dim]; row_stride in elements.
// Candidates are the complete blocks, and with `full_local` the local one when it is full (a
// prediction; Resolve and a sample of agreement take the complete ones only). Order equals that of
// ScoreBlocks and TopK of the cpu backend, for summaries and queries of any bits. head_dim is a
// multiple of 8; summaries are 16-byte aligned; 32,768 blocks fit with K up to 1,024, head_dim up
// to 576 and any group. Two kernels: the first fills `processors` multiprocessors (0: all; those
// that other kernels hold are left out, since a CTA that finds no room doubles the time) and leaves
// scores in mem.scores; the second ranks them.
LaunchError ScoreTopK(const Shape& shape, const LayerMemory& mem, const Rows& rows,
                      const void* queries, QueryType type, int64_t row_stride, Stream stream,
                      bool full_local = true, uint32_t processors = 0);
// Of mem.scores. Two streams that score at the same time need their own.
uint64_t ScoreBytes(const Shape& shape, uint32_t max_rows);

// The same from a ready list, int32 [row][head][k] in device memory, -1 for padding; blocks that
// are not candidates are passed over.
LaunchError LoadTopK(const Shape& shape, const LayerMemory& mem, const Rows& rows,
                     const int32_t* topk, uint32_t k, Stream stream);

// select: the capped delta of mem.predicted against mem.map, as Selector::Select gives it (with
// IncludePromoted for a full local block), into `plan`; stamps what stays. A local block that is
// full counts as promoted also without a prediction (`predicts` false). `cap` is shape.cap for a
// prediction, K for Resolve. A promoted block that the list lacks takes its first free or last
// place there. `counters`: [slot]. The rows may not change before Commit.
LaunchError Select(const Shape& shape, const LayerMemory& mem, const Rows& rows, bool predicts,
                   uint32_t cap, const Plan& plan, SlotCounters* counters, Stream stream);

struct GatherOptions {
  uint32_t ctas = 4;        // the link is full with 4; more disturb other kernels
  uint32_t threads = 1024;  // a multiple of 32, 1024 at most
  uint32_t loads = 4;       // 16-byte loads in flight of a thread: 4 or 8
};
// transfer, first half: empties the map entries of the plan's pages, then copies every item's entry
// from its source, or from the local page when it is promoted, into its page.
LaunchError Gather(const Shape& shape, uint32_t layer, const LayerMemory& mem, const Plan& plan,
                   const HeadSource* sources, const GatherOptions& options, ErrorWord* error,
                   Stream stream);
// transfer, second half, after every byte has arrived: looks at the grant words once more and only
// then enters the items into the map and stamps them; a slot whose word has changed gets an error
// and its items stay out. Promotes the local block of the plan's rows and clears promoted.
LaunchError Commit(const Shape& shape, uint32_t layer, const LayerMemory& mem, const Rows& rows,
                   const Plan& plan, const HeadSource* sources, SlotCounters* counters,
                   ErrorWord* error, Stream stream);

// The step's new token of each row enters the local block; keys and values [row][head][dim] with a
// row stride in elements. keys null: the engine wrote them itself, only the counts change. A
// block that becomes full is summarised.
LaunchError Append(const Shape& shape, uint32_t layer, const LayerMemory& mem, const Rows& rows,
                   const void* keys, const void* values, int64_t row_stride, ErrorWord* error,
                   Stream stream);

// Writes the completed local blocks of `rows` (those with promoted >= 0) to their frames in host
// memory: the entries, and their summaries (as keys, whatever the pool's are) where
// `summary_offset` says: bytes from a frame's start to the summary of (layer 0, head 0), 0: not
// written.
LaunchError WriteBack(const Shape& shape, uint32_t layer, const LayerMemory& mem, const Rows& rows,
                      const HeadSource* sources, uint64_t summary_offset, ErrorWord* error,
                      Stream stream);

// A dense paged KV cache of an engine: block b of request r (tokens b * block_tokens ...) at
//   k + table[r * table_stride + b] * page_stride + head * head_stride + token * token_stride.
struct DensePages {
  const std::byte* k = nullptr;
  const std::byte* v = nullptr;
  int64_t page_stride = 0, head_stride = 0, token_stride = 0;
  const int32_t* table = nullptr;  // device memory
  int64_t table_stride = 0;
};
// Summaries of blocks [first, first + blocks) of one request, into [head][max_blocks][min|max][dim]
// at `summaries`, as shape.summaries says. Bits equal SummariseKeys and SummaryToFloat8.
LaunchError BuildSummaries(const Shape& shape, const DensePages& dense, uint32_t request,
                           uint32_t first, uint32_t blocks, std::byte* summaries, Stream stream);
// Prefill side: blocks of one request and layer into host frames: entries, and their summaries.
// frames: device memory, addresses of frames [blocks].
LaunchError ScatterToFrames(const Shape& shape, uint32_t layer, const DensePages& dense,
                            uint32_t request, uint32_t first, uint32_t blocks,
                            const uint64_t* frames, uint32_t ctas, Stream stream);
// Turns a dense request into a slot of the working set: pages of `map` (set by the caller) are
// copied out of the dense cache, the partly filled last block becomes the local page.
LaunchError DenseToSparse(const Shape& shape, const LayerMemory& mem, const DensePages& dense,
                          uint32_t request, uint32_t slot, Stream stream);

// |predicted and true| of each (row, head): `truth` has mem.predicted's layout. Adds to counters.
LaunchError CompareTopK(const Shape& shape, const LayerMemory& mem, const Rows& rows,
                        const int32_t* truth, SlotCounters* counters, Stream stream);

// What exact mode tells attention.
struct Resolution {
  int32_t* pages = nullptr;     // [row][head][K]
  uint32_t* missing = nullptr;  // [row]
};
// Where the blocks of mem.predicted are resident. `count_skipped`: those that are not count as
// skipped.
LaunchError FindPages(const Shape& shape, const LayerMemory& mem, const Rows& rows,
                      const Resolution& out, bool count_skipped, SlotCounters* counters,
                      Stream stream);

}  // namespace oasiskv::gpu
