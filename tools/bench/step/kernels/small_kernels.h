// The small kernels of the step: data, and the element-wise parts of a layer. All enqueue on
// `stream` and may be captured.
#pragma once

#include <cstddef>
#include <cstdint>

#include "oasiskv/selection.h"
#include "tools/bench/step/kernels/attention.h"

namespace oasiskv::bench::step {

// BF16, normal with deviation `sigma`, by element number and seed.
LaunchError FillNormal(void* to, uint64_t elements, float sigma, uint64_t seed, Stream stream);

// hidden += y (y null: not), out = hidden / rms(hidden); BF16 [rows][columns], columns a multiple
// of 8.
LaunchError AddAndNorm(void* hidden, const void* y, void* out, uint32_t rows, uint32_t columns,
                       Stream stream);
// out = silu(gate) * up; in [rows][gate columns, up columns], BF16.
LaunchError GateTimesUp(const void* in, void* out, uint64_t rows, uint32_t columns, Stream stream);
// The largest logit of each row.
LaunchError Sample(const void* logits, int32_t* token, uint32_t rows, uint32_t vocab,
                   Stream stream);
// Writes one token's K and V of each row, [row][k columns, v columns] at kv, into the last token of
// its last page.
LaunchError DenseAppend(const PageLayout& pages, const PageSet& set, const void* kv,
                        int64_t row_stride, uint32_t rows, uint32_t kv_heads, uint32_t head_dim,
                        bool latent, Stream stream);

// Queries that wander: each element follows x' = a x + sqrt(1 - a^2) noise, and stays unit normal.
// The draft row of a step is the token row of the next.
struct QueryWalk {
  float* state = nullptr;    // [layer][row][columns]: of the draft row
  void* queries = nullptr;   // BF16 [layer][2][row][columns]: token rows, draft rows
  uint64_t* step = nullptr;  // device memory
  uint64_t layers = 0, rows = 0, columns = 0;
  float a = 1;
  uint64_t seed = 0;
};
// Advances all layers by one step.
LaunchError AdvanceQueries(const QueryWalk& walk, Stream stream);

// Frames of a host pool while they are still in device memory: entries [layer][head], then their
// summaries, which this fills in. keys: the K half of an entry (all of a latent one).
struct FrameShape {
  uint64_t frame_bytes = 0;
  uint32_t entries = 0;  // layers x heads
  uint32_t entry_bytes = 0, head_dim = 0;
};
LaunchError SummariseFrames(const FrameShape& shape, std::byte* frames, uint32_t count,
                            Stream stream);

// Summaries as 16 tokens of unit normal BF16 keys give them, [count][min|max][head_dim].
LaunchError FillSummaries(SummaryType type, void* to, uint64_t count, uint32_t head_dim,
                          uint64_t seed, Stream stream);

}  // namespace oasiskv::bench::step
