// How the sums of a KV head's query heads become one score, with the order of additions of
// client/selection/score.h.
#pragma once

#include <cstdint>

#include "client/working_set/cuda/kernels/element.cuh"
#include "oasiskv/selection.h"

namespace oasiskv::gpu {

// A head's sum less the greatest of all blocks' (`best`).
__device__ inline float BelowBest(float sum, float best) {
  return sum == best ? 0.0f : __fsub_rn(sum, best);
}

// The score of the heads so far, and the next head's.
__device__ inline float Combined(GroupCombine combine, float so_far, float next) {
  if (combine == GroupCombine::kMean || combine == GroupCombine::kSum) {
    return __fadd_rn(so_far, next);
  }
  return next > so_far || next != next ? next : so_far;  // a NaN stays
}

// The score of all `group` heads.
__device__ inline float Finished(GroupCombine combine, float score, uint32_t group) {
  return combine == GroupCombine::kMean ? __fdiv_rn(score, static_cast<float>(group)) : score;
}

}  // namespace oasiskv::gpu
