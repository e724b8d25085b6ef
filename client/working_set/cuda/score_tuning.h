// How the score kernel is laid over a GPU, for programs that measure it.
#pragma once

#include <cstdint>

#include "client/working_set/cuda/kernels.h"

namespace oasiskv::gpu {

// 0: ScoreTopK's own choice.
struct ScoreTuning {
  uint32_t cluster = 0;  // CTAs that share a (row, head): 1, 2, 4 or 8
  uint32_t stages = 0;   // of a warp's ring of 4 KiB stages: 1 to 3
  uint32_t processors = 0;
};

LaunchError ScoreTopKTuned(const Shape& shape, const LayerMemory& mem, const Rows& rows,
                           const void* queries, QueryType type, int64_t row_stride,
                           const ScoreTuning& tuning, Stream stream, bool full_local = true);

}  // namespace oasiskv::gpu
