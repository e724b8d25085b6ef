// How the score kernel is laid over a GPU, for programs that measure it.
#pragma once

#include <cstdint>

#include "client/working_set/cuda/kernels/kernels.h"

namespace oasiskv::gpu {

// 0: ScoreTopK's own choice.
struct ScoreTuning {
  uint32_t stages = 0;    // of a warp's ring: 1 to 3
  uint32_t units = 0;     // (row, head) pairs, or passes over one, of a batch: 1 to 32
  uint32_t together = 0;  // steps of a tile that a stage holds: 1, or 2 where their number is even
  uint32_t chunk = 0;     // tiles that a CTA takes at a time
  uint32_t processors = 0;
  bool ranks = true;  // false: the scores alone
};

LaunchError ScoreTopKTuned(const Shape& shape, const LayerMemory& mem, const Rows& rows,
                           const void* queries, QueryType type, int64_t row_stride,
                           const ScoreTuning& tuning, Stream stream, bool full_local = true);

}  // namespace oasiskv::gpu
