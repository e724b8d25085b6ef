// Data of the score measurement.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "client/working_set/cuda/kernels/kernels.h"
#include "oasiskv/selection.h"

namespace oasiskv::bench {

// Random summaries (BF16, or rounded from it), min[dim] then max[dim] of each of `blocks`.
gpu::LaunchError FillSummaries(std::byte* summaries, uint64_t blocks, uint32_t head_dim,
                               cudaStream_t stream, SummaryType type = SummaryType::kAsKeys);
// Random BF16 queries.
gpu::LaunchError FillQueries(std::byte* queries, uint64_t count, cudaStream_t stream);

}  // namespace oasiskv::bench
