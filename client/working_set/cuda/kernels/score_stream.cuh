// How summaries get from HBM to the arithmetic: every warp has a ring of stages in shared memory of
// its own, which it fills with asynchronous copies in the order in which it will need them, over
// the ends of heads and rows.
#pragma once

#include <cstdint>

#include "client/working_set/cuda/kernels/element.cuh"
#include "client/working_set/cuda/kernels/layout.h"
#include "client/working_set/cuda/kernels/score_work.cuh"

namespace oasiskv::gpu {

inline constexpr uint32_t kLanes = 16;     // partial sums of a score, score.h
inline constexpr uint32_t kSegment = 128;  // bytes of a minimum, and of a maximum, in a stage
inline constexpr uint32_t kStageBytes = kTileBlocks * 2 * kSegment;

// Warps of a CTA. Several CTAs share a multiprocessor, up to the limit of its registers: while one looks
// up its next chunk the others read on.
inline constexpr uint32_t kStreamWarps = 8;
inline constexpr uint32_t kScoreThreads = kStreamWarps * 32;
template <uint32_t kHeads>
inline constexpr uint32_t kScoreCtas = kHeads <= 4 ? 3 : 2;

__device__ inline uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// What the L2 cache is to keep. Summaries pass through once; scores are read again by RankKernel,
// and written back to HBM in between they cost more than their bytes, since HBM turns round for
// each: 11 us of 155 at 128 rows of 16K tokens on an H200.
__device__ inline uint64_t PassThrough() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ inline void StoreToKeep(float* to, float value) {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("st.global.L2::cache_hint.f32 [%0], %1, %2;" ::"l"(to), "f"(value), "l"(policy)
               : "memory");
}

// 16 bytes to `to` + kOffset, an address in shared memory; zeros unless `there`.
template <uint32_t kOffset>
__device__ inline void CopyAsync(uint32_t to, const std::byte* from, uint64_t policy) {
  asm volatile(
      "cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0 + %2], [%1], 16, %3;" ::"r"(to),
      "l"(from), "n"(kOffset), "l"(policy)
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
// half by the block's number modulo 4, so that what a warp reads of neighbouring blocks lies in
// different banks.
template <Element kElement>
struct StageLayout {
  static constexpr uint32_t kUnit = kLanes * ElementPair<kElement>::kBytes;
  static constexpr uint32_t kUnits = kSegment / kUnit;
  static constexpr uint32_t kDims = kSegment / ElementPair<kElement>::kBytes;
  __device__ static uint32_t Swizzle(uint32_t block) {
    return (block & (kUnits < 4 ? kUnits - 1 : 3)) * kUnit;
  }
};

// The filling end of a warp's ring, for one batch of `tiles` tiles.
template <Element kElement>
class Feeder {
 public:
  __device__ Feeder(const Unit* units, uint32_t tiles, uint32_t warp)
      : walk_(units, warp), tiles_(tiles) {}

  // Copies the next stage to `to`, an address in shared memory, if there is a next one; commits a
  // group in any case. Called by the whole warp.
  __device__ void Feed(const ScoreArgs& args, uint32_t to) {
    if (walk_.number() < tiles_) {
      if (step_ == 0) Begin(args);
      for (uint32_t i = 0; i < args.together; ++i) Copy(args, to + i * kStageBytes);
      step_ += args.together;
      if (step_ == args.steps) {
        step_ = 0;
        walk_.Next(kStreamWarps);
      }
    }
    CommitCopies();
  }

 private:
  // Lane l brings piece l % 16 of every second block.
  __device__ void Begin(const ScoreArgs& args) {
    walk_.Find();
    const uint32_t lane = threadIdx.x % 32, piece = lane % 16;
    first_ = walk_.tile() * kTileBlocks + lane / 16;
    in_half_ = piece % 8 * 16;
    from_ = walk_.unit().summaries + uint64_t{first_} * args.summary_bytes +
            (piece / 8 * (args.summary_bytes / 2) + in_half_);
    whole_ = (walk_.tile() + 1) * kTileBlocks <= walk_.unit().blocks;
  }

  // What lies beyond the last block or dimension becomes 0, which changes no sum.
  __device__ void Copy(const ScoreArgs& args, uint32_t to) {
    const uint32_t lane = threadIdx.x % 32, piece = lane % 16, odd = lane / 16;
    const uint32_t half = args.summary_bytes / 2, pitch = 2 * args.summary_bytes;
    const std::byte* from = from_;
    const uint64_t policy = PassThrough();
    // Blocks 0, 4, 8, 12 (and the odd ones after them) are swizzled alike, and so are the others.
    to += odd * kBlockBytes;
    const uint32_t fours = to + ((piece * 16) ^ Layout::Swizzle(odd));
    const uint32_t twos = to + ((piece * 16) ^ Layout::Swizzle(2 + odd)) + 2 * kBlockBytes;
    if (whole_ && in_half_ < half) {
      CopyAsync<0>(fours, from, policy);
      CopyAsync<0>(twos, from += pitch, policy);
      CopyAsync<4 * kBlockBytes>(fours, from += pitch, policy);
      CopyAsync<4 * kBlockBytes>(twos, from += pitch, policy);
      CopyAsync<8 * kBlockBytes>(fours, from += pitch, policy);
      CopyAsync<8 * kBlockBytes>(twos, from += pitch, policy);
      CopyAsync<12 * kBlockBytes>(fours, from += pitch, policy);
      CopyAsync<12 * kBlockBytes>(twos, from += pitch, policy);
    } else {
      const uint32_t blocks = walk_.unit().blocks;
#pragma unroll 1
      for (uint32_t i = 0; i < kTileBlocks / 2; ++i, from += pitch) {
        const bool there = in_half_ < half && first_ + 2 * i < blocks;
        CopyAsyncOrZeros((i % 2 == 0 ? fours : twos) + i / 2 * 4 * kBlockBytes,
                         there ? from : args.summaries, there);
      }
    }
    from_ += kSegment;
    in_half_ += kSegment;
  }

  using Layout = StageLayout<kElement>;
  static constexpr uint32_t kBlockBytes = 2 * kSegment;

  TileWalk walk_;
  const uint32_t tiles_;
  uint32_t step_ = 0;
  // Of the tile that is being copied: this lane's next piece, its place in a half, its first block.
  const std::byte* from_ = nullptr;
  uint32_t in_half_ = 0, first_ = 0;
  bool whole_ = false;  // all of its blocks are there
};

}  // namespace oasiskv::gpu
