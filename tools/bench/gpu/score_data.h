// Data of the score measurement, and the plainest kernel that reads it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "oasiskv/selection.h"

namespace oasiskv::bench {

// Random summaries (BF16, or rounded from it), min[dim] then max[dim] of each of `blocks`.
const char* FillSummaries(std::byte* summaries, uint64_t blocks, uint32_t head_dim,
                          cudaStream_t stream, SummaryType type = SummaryType::kAsKeys);
// Random BF16 queries.
const char* FillQueries(std::byte* queries, uint64_t count, cudaStream_t stream);
// Reads `bytes` (a multiple of 16) once with 16-byte loads and does next to nothing with them.
const char* ReadAll(const std::byte* from, uint64_t bytes, uint32_t* sink, cudaStream_t stream);

}  // namespace oasiskv::bench
