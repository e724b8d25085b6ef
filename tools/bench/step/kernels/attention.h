// Decode attention of the foreground: over the resident pages of a working set, and over a dense
// paged KV cache. BF16, head by head, flash-decoding with splits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "client/working_set/cuda/kernels/kernels.h"

namespace oasiskv::bench::step {

using gpu::LaunchError;
using gpu::Stream;

// Where a page of a head lies: token t of page p of head h at
//   k + p * page_stride + h * head_stride + t * token_stride   (bytes), v likewise.
// 16 tokens a page. Bases and strides are multiples of 16.
struct PageLayout {
  const std::byte* k = nullptr;
  const std::byte* v = nullptr;  // latent: equals k
  int64_t page_stride = 0, head_stride = 0, token_stride = 0;
};

// The pages that row r attends to with head h. Sparse (`map` set): pages p < resident of slot
// slots[r] whose map entry is not -1, and page `resident`, the local one, of which
// state[slot].local_tokens tokens count; physical page table[slot * (resident + 1) + p], or
// slot * (resident + 1) + p without a table. Dense: `blocks` pages table[r * blocks + b], all full.
struct PageSet {
  const int32_t* map = nullptr;  // [slot][head][resident]
  const gpu::SlotState* state = nullptr;
  const int32_t* slots = nullptr;
  const uint32_t* count = nullptr;  // rows at and beyond it do nothing; null: all rows count
  const int32_t* table = nullptr;
  uint32_t resident = 0;
  uint32_t blocks = 0;
};

// Queries and outputs: [query_rows][max_rows][kv_heads * group][dim], BF16; the output's dim is
// value_dim. query_rows rows of one request (token, draft) see the same pages, which are read once.
struct AttentionShape {
  uint32_t max_rows = 0, kv_heads = 0, group = 0, query_rows = 0;
  uint32_t head_dim = 0, value_dim = 0;
  uint32_t splits = 1;  // CTAs of one (row, head)
  float scale = 0;      // of q.k before the softmax
};

// Bytes of the scratch for `shape`; zeroed once before the first launch.
uint64_t AttentionScratchBytes(const AttentionShape& shape);
// Splits that give CTAs enough for `sms` multiprocessors to share evenly and few enough that each
// still streams.
uint32_t ChooseSplits(uint32_t rows, uint32_t kv_heads, uint32_t pages, uint32_t sms);
// True: the tensor-core kernel takes this shape; else the generic one, which is right and not fast.
bool IsFastShape(const AttentionShape& shape);

// Both enqueue one kernel and may be captured.
LaunchError Attend(const AttentionShape& shape, const PageLayout& pages, const PageSet& set,
                   const void* queries, void* out, void* scratch, Stream stream);
LaunchError AttendGeneric(const AttentionShape& shape, const PageLayout& pages, const PageSet& set,
                          const void* queries, void* out, Stream stream);

}  // namespace oasiskv::bench::step
