// How summaries get from HBM to the arithmetic: every warp has a ring of stages in shared memory of
// its own, which it fills with asynchronous copies in the order in which it will need them. The
// ring runs ahead over the ends of heads and rows, so that HBM is busy while a CTA ranks.
#pragma once

#include <cstdint>

#include "client/working_set/cuda/element.cuh"
#include "client/working_set/cuda/layout.h"

namespace oasiskv::gpu {

inline constexpr uint32_t kLanes = 16;       // partial sums of a score, score.h
inline constexpr uint32_t kTileBlocks = 16;  // blocks that a warp scores at a time
inline constexpr uint32_t kSegment = 128;    // bytes of a minimum, and of a maximum, in a stage
inline constexpr uint32_t kStageBytes = kTileBlocks * 2 * kSegment;
inline constexpr uint32_t kStreamWarps = 8;

// Plain data of one launch.
struct ScoreArgs {
  const std::byte* summaries;
  int64_t slot_stride;
  const SlotState* state;
  int32_t* predicted;
  Rows rows;
  const void* queries;
  int64_t row_stride;
  QueryType query_type;
  GroupCombine combine;
  bool full_local;  // a local block that is full is a candidate
  bool stored;      // kNormalizedMax: all sums fit shared memory; otherwise they are made twice
  uint32_t kv_heads, group, head_dim, summary_bytes, block_tokens, max_blocks, resident;
  float near, far;
  uint32_t query_dims;  // head_dim, rounded up to whole stages
  uint32_t steps;       // stages of a tile
  uint32_t passes;      // over a head's summaries, for a few query heads each
  uint32_t rounds;      // passes, twice if the sums are made twice
  uint32_t stages;      // of a ring: 2, 3 or 4
  uint32_t cluster;     // CTAs that share a head
  // Places in shared memory; the rings begin at 0.
  uint32_t queries_at, keys_at, bounds_at, best_at, winners_at, histogram_at, words_at;
};

// One KV head of one row.
struct HeadWork {
  const std::byte* summaries;
  uint32_t blocks;  // candidates
  uint32_t slot;
};
__device__ inline HeadWork WorkOf(const ScoreArgs& a, uint32_t pair) {
  const uint32_t row = pair / a.kv_heads, head = pair - row * a.kv_heads;
  const uint32_t slot = a.rows.slots[row];
  const SlotState& state = a.state[slot];
  const uint32_t local = a.full_local && state.local_tokens >= a.block_tokens ? 1 : 0;
  return {a.summaries + slot * a.slot_stride + uint64_t{head} * a.max_blocks * a.summary_bytes,
          min(state.complete + local, a.max_blocks), slot};
}

// A warp's share of the work: pair by pair, round by round, tile by tile, step by step.
struct Share {
  uint32_t pairs, pair_stride, first_tile, tile_stride;
};

__device__ inline void CopyAsync(uint32_t to, const std::byte* from, uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(bytes)
               : "memory");
}
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until the oldest of `stages` groups is there, for this thread.
__device__ inline void WaitOldest(uint32_t stages) {
  if (stages == 2) {
    asm volatile("cp.async.wait_group 1;" ::: "memory");
  } else if (stages == 3) {
    asm volatile("cp.async.wait_group 2;" ::: "memory");
  } else {
    asm volatile("cp.async.wait_group 3;" ::: "memory");
  }
}

// A stage holds 128 bytes of the minima, then of the maxima, of 16 blocks, block after block. What
// the 8 threads of a block read at a time is a unit of 16 elements; units are exchanged within a
// half by the block's number, so that the four blocks that a warp reads at a time lie in different
// banks.
template <Element kElement>
struct StageLayout {
  static constexpr uint32_t kUnit = kLanes * ElementPair<kElement>::kBytes;
  static constexpr uint32_t kUnits = kSegment / kUnit;
  static constexpr uint32_t kDims = kSegment / ElementPair<kElement>::kBytes;
  __device__ static uint32_t Swizzle(uint32_t block) { return (block & (kUnits - 1)) * kUnit; }
};

// The filling end of a warp's ring.
template <Element kElement>
class Feeder {
 public:
  __device__ Feeder(const ScoreArgs& args, const Share& share, uint32_t first_pair)
      : share_(share), pair_(first_pair) {
    if (pair_ >= share_.pairs) return;
    work_ = WorkOf(args, pair_);
    tile_ = share_.first_tile;
    SkipEmpty(args);
  }

  // Copies the next stage to `to`, an address in shared memory, if there is a next one; commits a
  // group in any case. Called by the whole warp.
  __device__ void Feed(const ScoreArgs& args, uint32_t to) {
    if (pair_ < share_.pairs) {
      Copy(args, to);
      if (++step_ == args.steps) {
        step_ = 0;
        tile_ += share_.tile_stride;
        SkipEmpty(args);
      }
    }
    CommitCopies();
  }

 private:
  __device__ void SkipEmpty(const ScoreArgs& args) {
    while (tile_ * kTileBlocks >= work_.blocks) {
      tile_ = share_.first_tile;
      if (++round_ < args.rounds) continue;
      round_ = 0;
      pair_ += share_.pair_stride;
      if (pair_ >= share_.pairs) return;
      work_ = WorkOf(args, pair_);
    }
  }

  // Lane l brings piece l % 16 of every second block. What lies beyond the last block or dimension
  // becomes 0, which changes no sum.
  __device__ void Copy(const ScoreArgs& args, uint32_t to) const {
    const uint32_t lane = threadIdx.x % 32, piece = lane % 16, odd = lane / 16;
    const uint32_t half = args.summary_bytes / 2;
    const uint32_t in_half = step_ * kSegment + piece % 8 * 16;
    const uint32_t first = tile_ * kTileBlocks + odd;
    const std::byte* from =
        work_.summaries + uint64_t{first} * args.summary_bytes + piece / 8 * half + in_half;
    const uint32_t pitch = 2 * args.summary_bytes;
    if (in_half < half && tile_ * kTileBlocks + kTileBlocks <= work_.blocks) {
#pragma unroll
      for (uint32_t i = 0; i < kTileBlocks / 2; ++i) {
        CopyAsync(to + Place(2 * i, odd, piece), from + i * pitch, 16);
      }
    } else {
#pragma unroll
      for (uint32_t i = 0; i < kTileBlocks / 2; ++i) {
        const bool there = in_half < half && first + 2 * i < work_.blocks;
        CopyAsync(to + Place(2 * i, odd, piece), there ? from + i * pitch : work_.summaries,
                  there ? 16 : 0);
      }
    }
  }
  __device__ static uint32_t Place(uint32_t even, uint32_t odd, uint32_t piece) {
    return (even + odd) * 2 * kSegment +
           ((piece * 16) ^ StageLayout<kElement>::Swizzle(even + odd));
  }

  const Share share_;
  HeadWork work_{};
  uint32_t pair_, round_ = 0, tile_ = 0, step_ = 0;
};

}  // namespace oasiskv::gpu
