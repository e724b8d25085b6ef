// What a kernel is told about a working set in HBM: shapes, addresses and strides, all plain data.
// No CUDA and no Abseil header here: both the host code and the kernels include it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "oasiskv/selection.h"

struct CUstream_st;

namespace oasiskv::gpu {

using Stream = CUstream_st*;  // cudaStream_t

// Values equal those of oasiskv::ElementType. kFloat8 (E4M3) is for summaries only.
enum class Element : uint8_t { kFloat16 = 1, kBFloat16 = 2, kFloat32 = 3, kFloat8 = 4 };

// Constant for the life of a working set; passed to kernels by value.
struct Shape {
  uint32_t layers = 0;
  uint32_t kv_heads = 0;
  uint32_t group = 0;  // query heads of one KV head
  uint32_t head_dim = 0;
  uint32_t block_tokens = 0;
  Element element = Element::kBFloat16;
  bool latent = false;         // MLA: an entry has no V half, there is one head
  uint32_t entry_bytes = 0;    // K[token][dim] then V[token][dim]; the whole latent array
  uint32_t key_bytes = 0;      // one token of one head
  uint32_t summary_bytes = 0;  // of the pool: min[dim] then max[dim]
  SummaryType summaries = SummaryType::kAsKeys;  // the pool's; in frames they are as keys
  uint32_t resident = 0;                         // K
  uint32_t ranked = 0;                           // blocks that a prediction ranks; 0: K
  uint32_t max_blocks = 0;                       // of one request, prefill and decoded together
  uint32_t slots = 0;
  uint32_t cap = 0;  // C: blocks that one head may change in a step
  GroupCombine combine = GroupCombine::kMax;
  float near = 1.0f, far = 0.0f;  // (1 +- bound_weight) / 2; far == 0: the box is not shrunk
};

// The engine's pages of one layer. Page p of head h of request slot s begins, for token t, at
//   k + physical(s, p) * page_stride + h * head_stride + t * token_stride   (bytes),
// and v likewise; one token's head_dim elements are contiguous. physical(s, p) is
// table[s * (K + 1) + p], or s * (K + 1) + p without a table. Page K of a slot is its local block.
// HND and NHD, K and V apart or in one block differ in strides and base addresses only. MLA: v is
// null. Bases and strides are multiples of 16.
struct Pages {
  std::byte* k = nullptr;
  std::byte* v = nullptr;
  int64_t page_stride = 0, head_stride = 0, token_stride = 0;
  const int32_t* table = nullptr;  // device memory, [slots][K + 1]
};

// One request slot at one layer, in device memory; changed by kernels only while the slot is in
// use.
struct SlotState {
  uint64_t clock = 0;         // selections so far
  uint32_t complete = 0;      // blocks before the local one
  uint32_t local_tokens = 0;  // valid tokens of the local block
  int32_t promoted = -1;      // the completed local block between Select and Commit, or -1
  uint32_t pending = 0;       // 1 between a Select that concerns the slot and its Commit
};

// What one slot's pages at one layer got from its source and attention has not read yet.
struct SlotUse {
  uint32_t fresh = 0;     // such pages
  uint32_t attended = 0;  // the clock when attention was done last
};

// Everything of one layer, device memory.
struct LayerMemory {
  Pages pages;
  std::byte* summaries = nullptr;     // [slot][head][max_blocks][min|max][dim]
  int64_t summaries_slot_stride = 0;  // bytes
  int32_t* map = nullptr;             // [slot][head][K]: logical block of a page, -1: empty
  uint64_t* stamps = nullptr;         // [slot][head][K]: the selection that last chose the page
  int32_t* predicted = nullptr;       // [slot][head][K]: best first, -1 for padding
  SlotState* state = nullptr;         // [slot]
  SlotUse* use = nullptr;             // [slot]; null: use is not counted
  // [slot][head][K]: the clock of the Commit that brought a page's entry from the source, 0: it did
  // not come from there. Needed where Resolve may evict what was never attended; else null.
  uint32_t* entered = nullptr;
  float* scores = nullptr;  // ScoreTopK's own, ScoreBytes of them; layers may share it
};

// The rows of a step: row r is request slot slots[r]; rows at and beyond *count do nothing. Kernels
// are launched for max_rows, so that a captured graph serves any number of rows.
struct Rows {
  const int32_t* slots = nullptr;   // device memory, [max_rows]
  const uint32_t* count = nullptr;  // device memory
  uint32_t max_rows = 0;
};

// Where the entries of one KV head of one slot lie, device memory, [slot][head]. The entry of
// (layer, block) begins at
//   frames[layer * frames_layer_stride + block] + entry_offset + layer * layer_stride
// where a frame address of 0 means that this host does not hold the block yet. Addresses are those
// the device may use (registered host memory, or device memory).
struct HeadSource {
  const uint64_t* frames = nullptr;
  uint64_t frames_layer_stride = 0;  // items; 0 where one frame holds all layers
  uint64_t entry_offset = 0, layer_stride = 0;
  const volatile uint64_t* grant_word = nullptr;  // null: memory of this process's own
  uint64_t epoch = 0;
};

// One page that is to hold another block.
struct alignas(16) PlanItem {
  uint16_t slot = 0;
  uint16_t head = 0;
  uint16_t page = 0;
  uint16_t flags = 0;  // kItem...
  int32_t block = -1;
  int32_t row = 0;
};
inline constexpr uint16_t kItemPromoted = 1;  // from the local page, not from a source
// Set where the bytes could not be brought (a missing frame, a wait that timed out): Commit leaves
// the page empty.
inline constexpr uint16_t kItemSkipped = 2;
// Set before Gather, where a source's bytes did not come in time: the page keeps what it holds, as
// if the cap had refused the item.
inline constexpr uint16_t kItemRefused = 4;

// Where the items of one (row, head) stand.
struct PlanGroup {
  uint32_t first = 0;
  uint32_t count = 0;
};

// One layer's plan, device memory: written by Select, read until Commit. Items are grouped by
// (row, head), in the order that the cpu backend's Selector gives; groups stand in any order.
struct Plan {
  uint32_t* count = nullptr;    // items; Select starts it from 0
  PlanItem* items = nullptr;    // [capacity]
  PlanGroup* groups = nullptr;  // [max_rows][kv_heads]
  uint32_t capacity = 0;        // max_rows * kv_heads * (min(K, C) + 1)
  // Resolve's plan: a full local block stays the local one, nothing is promoted, what is fetched
  // counts as demanded. `mem.predicted` holds the true selection.
  bool resolve = false;
};

// Counters of one slot, device memory; see WorkingSetStats.
struct SlotCounters {
  unsigned long long steps = 0, predicted = 0, hit = 0, admitted = 0, promoted = 0, refused = 0,
                     skipped = 0, demanded = 0, agreement_samples = 0, agreement_common = 0,
                     agreement_of = 0, late = 0, used = 0;
};

// What went wrong on the device, in pinned host memory so that the host sees it without a call.
// Written as one 16-byte word, so never half; the first error stays until the host clears `code`
// (of errors within one round trip of the link any may win).
struct alignas(16) ErrorWord {
  uint32_t code = 0;  // ErrorKind
  uint32_t layer = 0;
  uint32_t slot = 0;
  uint32_t detail = 0;
};
enum class ErrorKind : uint32_t {
  kNone = 0,
  kStale = 1,     // the grant word no longer held the epoch: the pages were emptied (map -1)
  kTimeout = 2,   // a wait for remote bytes passed its limit: the items were skipped
  kMissing = 3,   // an item's frame address was 0 where none may be
  kOverflow = 4,  // a local block was full, or max_blocks reached: the token was not stored
};

}  // namespace oasiskv::gpu
