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

// Warps of a CTA that score, beside four that rank: as many as registers allow.
template <uint32_t kHeads>
inline constexpr uint32_t kStreamWarps = kHeads <= 4 ? 20 : 12;

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
  uint32_t stages;      // of a ring: 1 to 3
  uint32_t cluster;     // CTAs that share a head
  uint32_t key_sides;   // sets of keys: 3, or 2 where a third has no room
  // Places in shared memory; the rings begin at 0. Of queries, keys, bounds and best there are two.
  uint32_t barriers_at, works_at, queries_at, keys_at, bounds_at, best_at;
  uint32_t winners_at, histogram_at, words_at;
};

// One KV head of one row.
struct HeadWork {
  const std::byte* summaries;
  uint32_t blocks;  // candidates
  uint32_t slot;
  __device__ uint32_t Tiles() const { return (blocks + kTileBlocks - 1) / kTileBlocks; }
};
__device__ inline HeadWork ReadWork(const ScoreArgs& a, uint32_t pair) {
  const uint32_t row = pair / a.kv_heads, head = pair - row * a.kv_heads;
  const uint32_t slot = a.rows.slots[row];
  const SlotState& state = a.state[slot];
  const uint32_t local = a.full_local && state.local_tokens >= a.block_tokens ? 1 : 0;
  return {a.summaries + slot * a.slot_stride + uint64_t{head} * a.max_blocks * a.summary_bytes,
          min(state.complete + local, a.max_blocks), slot};
}

// The pairs of a cluster: first, first + stride, ... The first ones are looked up at the kernel's
// start by one thread each, so that no warp waits for them later.
struct PairList {
  static constexpr uint32_t kTable = 64;
  uint32_t first, stride, count;
  const HeadWork* table;  // in shared memory
  __device__ uint32_t Pair(uint32_t i) const { return first + i * stride; }
  __device__ HeadWork Work(const ScoreArgs& args, uint32_t i) const {
    return i < kTable ? table[i] : ReadWork(args, Pair(i));
  }
};

// Where a warp is in its work: pair by pair, round by round, tile by tile. Tiles are dealt to the
// warps of a cluster in turn, on from where the pair before has ended; all rounds of a pair alike.
class Cursor {
 public:
  // Warp `warp` of `warps` in the cluster.
  __device__ Cursor(const ScoreArgs& args, const PairList& list, uint32_t warp, uint32_t warps)
      : warps_(warps), first_(warp) {
    if (list.count == 0) return;
    work_ = list.Work(args, 0);
    tile_ = first_;
  }
  __device__ bool PairsLeft(const PairList& list) const { return index_ < list.count; }
  __device__ bool TilesLeft() const { return tile_ * kTileBlocks < work_.blocks; }
  __device__ void NextTile() { tile_ += warps_; }
  __device__ void NextRound() { tile_ = first_; }
  __device__ void NextPair(const ScoreArgs& args, const PairList& list) {
    first_ = (first_ + warps_ - work_.Tiles() % warps_) % warps_;
    if (++index_ < list.count) work_ = list.Work(args, index_);
    tile_ = first_;
  }
  __device__ const HeadWork& work() const { return work_; }
  __device__ uint32_t index() const { return index_; }
  __device__ uint32_t tile() const { return tile_; }

 private:
  const uint32_t warps_;
  uint32_t first_, index_ = 0, tile_ = 0;
  HeadWork work_{};
};

// 16 bytes to `to` + kOffset, an address in shared memory; zeros unless `there`.
template <uint32_t kOffset>
__device__ inline void CopyAsync(uint32_t to, const std::byte* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0 + %2], [%1], 16;" ::"r"(to), "l"(from),
               "n"(kOffset)
               : "memory");
}
__device__ inline void CopyAsyncOrZeros(uint32_t to, const std::byte* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(there ? 16 : 0)
               : "memory");
}
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until the oldest of `stages` groups is there, for this thread.
__device__ inline void WaitOldest(uint32_t stages) {
  if (stages == 3) {
    asm volatile("cp.async.wait_group 2;" ::: "memory");
  } else if (stages == 2) {
    asm volatile("cp.async.wait_group 1;" ::: "memory");
  } else {
    asm volatile("cp.async.wait_group 0;" ::: "memory");
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
  __device__ Feeder(const ScoreArgs& args, const PairList& list, uint32_t warp, uint32_t warps)
      : at_(args, list, warp, warps) {
    SkipEmpty(args, list);
  }

  // Copies the next stage to `to`, an address in shared memory, if there is a next one; commits a
  // group in any case. Called by the whole warp.
  __device__ void Feed(const ScoreArgs& args, const PairList& list, uint32_t to) {
    if (at_.PairsLeft(list)) {
      Copy(args, to);
      if (++step_ == args.steps) {
        step_ = 0;
        at_.NextTile();
        SkipEmpty(args, list);
      }
    }
    CommitCopies();
  }

 private:
  __device__ void SkipEmpty(const ScoreArgs& args, const PairList& list) {
    while (at_.PairsLeft(list) && !at_.TilesLeft()) {
      if (++round_ < args.rounds) {
        at_.NextRound();
      } else {
        round_ = 0;
        at_.NextPair(args, list);
      }
    }
  }

  // Lane l brings piece l % 16 of every second block. What lies beyond the last block or dimension
  // becomes 0, which changes no sum.
  __device__ void Copy(const ScoreArgs& args, uint32_t to) const {
    const uint32_t lane = threadIdx.x % 32, piece = lane % 16, odd = lane / 16;
    const uint32_t half = args.summary_bytes / 2;
    const uint32_t in_half = step_ * kSegment + piece % 8 * 16;
    const HeadWork& work = at_.work();
    const uint32_t first = at_.tile() * kTileBlocks + odd;
    const std::byte* from =
        work.summaries + uint64_t{first} * args.summary_bytes + (piece / 8 * half + in_half);
    const uint32_t pitch = 2 * args.summary_bytes;
    // Blocks 0, 4, 8, 12 (and the odd ones after them) are swizzled alike, and so are the others.
    to += odd * kBlockBytes;
    const uint32_t fours = to + ((piece * 16) ^ Layout::Swizzle(odd));
    const uint32_t twos = to + ((piece * 16) ^ Layout::Swizzle(2 + odd)) + 2 * kBlockBytes;
    if (in_half < half && (at_.tile() + 1) * kTileBlocks <= work.blocks) {
      CopyAsync<0>(fours, from);
      CopyAsync<0>(twos, from += pitch);
      CopyAsync<4 * kBlockBytes>(fours, from += pitch);
      CopyAsync<4 * kBlockBytes>(twos, from += pitch);
      CopyAsync<8 * kBlockBytes>(fours, from += pitch);
      CopyAsync<8 * kBlockBytes>(twos, from += pitch);
      CopyAsync<12 * kBlockBytes>(fours, from += pitch);
      CopyAsync<12 * kBlockBytes>(twos, from += pitch);
    } else {
#pragma unroll 1
      for (uint32_t i = 0; i < kTileBlocks / 2; ++i, from += pitch) {
        const bool there = in_half < half && first + 2 * i < work.blocks;
        CopyAsyncOrZeros((i % 2 == 0 ? fours : twos) + i / 2 * 4 * kBlockBytes,
                         there ? from : work.summaries, there);
      }
    }
  }

  using Layout = StageLayout<kElement>;
  static constexpr uint32_t kBlockBytes = 2 * kSegment;

  Cursor at_;
  uint32_t round_ = 0, step_ = 0;
};

}  // namespace oasiskv::gpu
