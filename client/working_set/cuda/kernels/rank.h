// The second half of ScoreTopK: from scores to the lists of the best.
#pragma once

#include <cstdint>

#include "client/working_set/cuda/kernels/kernels.h"
#include "client/working_set/cuda/kernels/layout.h"

namespace oasiskv::gpu {

// Query heads that one pass over a KV head's summaries takes.
inline uint32_t HeadsOfPass(const Shape& shape) { return shape.group <= 4 ? 4 : 8; }

// Whether mem.scores holds one score a block, and not the sum of each query head.
inline bool ScoresAreFolded(const Shape& shape) {
  return shape.group <= HeadsOfPass(shape) && shape.combine != GroupCombine::kNormalizedMax;
}

// Follows the kernel that writes mem.scores on the same stream.
LaunchError RankScores(const Shape& shape, const LayerMemory& mem, const Rows& rows,
                       bool full_local, Stream stream);

}  // namespace oasiskv::gpu
