// The k greatest of keys in shared memory, by four warps of a CTA.
#pragma once

#include <cstdint>

#include "client/working_set/cuda/barrier.cuh"

namespace oasiskv::gpu {

inline constexpr uint32_t kRankThreads = 128;
inline constexpr uint32_t kRankWarps = kRankThreads / 32;
inline constexpr uint32_t kRankDigits = 256;

// Among the kRankThreads threads only.
__device__ inline void RankSync() { NamedWait(1, kRankThreads); }

// Shared memory of RankKeys. `winners` has room for RankRoom(k).
struct RankScratch {
  uint64_t* winners;
  uint32_t* histogram;  // [kRankDigits]
  uint32_t* words;      // [kRankWords]
};
inline constexpr uint32_t kRankWords = 4 + 2 * kRankWarps;  // what warps tell each other
// A power of two, at least 64.
__host__ __device__ inline uint32_t SortSize(uint32_t n) {
  uint32_t size = 64;
  while (size < n) size *= 2;
  return size;
}
__host__ __device__ inline uint32_t RankRoom(uint32_t k) { return 2 * SortSize(k); }

// Which keys are sorted: those above `threshold`, and the first `ties` that equal it; `count` in
// all.
struct RankCut {
  uint32_t threshold;
  uint32_t ties;
  uint32_t count;
};

// Radix select of 8 bits at a time, from the highest bit in which keys differ; it ends as soon as
// few enough are left to sort. Pre-condition: 0 < k < n.
__device__ inline RankCut FindCut(const uint32_t* keys, uint32_t n, uint32_t k,
                                  const RankScratch& scratch, uint32_t tid) {
  uint32_t least = ~0u, greatest = 0;
  for (uint32_t i = tid; i < n; i += kRankThreads) {
    least = min(least, keys[i]);
    greatest = max(greatest, keys[i]);
  }
  least = __reduce_min_sync(~0u, least);
  greatest = __reduce_max_sync(~0u, greatest);
  uint32_t* const of_warps = scratch.words + 4;
  if (tid % 32 == 0) {
    of_warps[tid / 32] = least;
    of_warps[kRankWarps + tid / 32] = greatest;
  }
  for (uint32_t d = tid; d < kRankDigits; d += kRankThreads) scratch.histogram[d] = 0;
  RankSync();
  for (uint32_t w = 0; w < kRankWarps; ++w) {
    least = min(least, of_warps[w]);
    greatest = max(greatest, of_warps[kRankWarps + w]);
  }
  if (least == greatest) return {least, k, k};
  int shift = max(24 - __clz(least ^ greatest), 0);
  uint32_t mask = shift == 24 ? 0 : ~0u << (shift + 8);
  uint32_t prefix = greatest & mask, need = k;
  for (;;) {
    for (uint32_t i = tid; i < n; i += kRankThreads) {
      const uint32_t key = keys[i];
      if ((key & mask) == prefix) atomicAdd(&scratch.histogram[(key >> shift) & 255], 1u);
    }
    RankSync();
    if (tid < 32) {  // lane l has eight digits, from 255 - 8 l downwards
      uint32_t counts[8], sum = 0;
#pragma unroll
      for (uint32_t b = 0; b < 8; ++b) sum += counts[b] = scratch.histogram[255 - 8 * tid - b];
      uint32_t upto = sum;
      for (uint32_t d = 1; d < 32; d *= 2) {
        const uint32_t other = __shfl_up_sync(~0u, upto, d);
        if (tid >= d) upto += other;
      }
      uint32_t above = upto - sum;
      if (above < need && need <= upto) {  // one lane
#pragma unroll
        for (uint32_t b = 0; b < 8; ++b) {
          if (above < need && need <= above + counts[b]) {
            scratch.words[0] = 255 - 8 * tid - b;
            scratch.words[1] = above;
            scratch.words[2] = counts[b];
          }
          above += counts[b];
        }
      }
    }
    RankSync();
    const uint32_t count = scratch.words[2];
    need -= scratch.words[1];
    prefix |= scratch.words[0] << shift;
    mask |= 255u << shift;
    // All of this digit, more than wanted, are sorted; not where that would be all n.
    const uint32_t all = k - need + count;
    if (all <= RankRoom(k) && prefix != 0) return {prefix - 1, 0, all};
    if (shift == 0) return {prefix, need, k};
    shift = max(shift - 8, 0);
    for (uint32_t d = tid; d < kRankDigits; d += kRankThreads) scratch.histogram[d] = 0;
    RankSync();
  }
}

// Puts the wanted keys into scratch.winners, each above the complement of its index.
__device__ inline void Compact(const uint32_t* keys, uint32_t n, RankCut cut,
                               const RankScratch& scratch, uint32_t tid) {
  const uint32_t warp = tid / 32, lane = tid % 32;
  const uint32_t each = (n + kRankThreads - 1) / kRankThreads * 32;
  const uint32_t begin = min(n, warp * each), end = min(n, begin + each);
  uint32_t* const greater = scratch.words + 4;
  uint32_t* const equal = greater + kRankWarps;
  uint32_t above = 0, same = 0;
  for (uint32_t first = begin; first < end; first += 32) {
    const uint32_t i = first + lane;
    const bool in = i < end;
    const uint32_t key = in ? keys[i] : 0;
    above += __popc(__ballot_sync(~0u, in && key > cut.threshold));
    same += __popc(__ballot_sync(~0u, in && key == cut.threshold));
  }
  if (lane == 0) {
    greater[warp] = above;
    equal[warp] = same;
  }
  RankSync();
  uint32_t all_above = 0;
  above = same = 0;
  for (uint32_t w = 0; w < kRankWarps; ++w) {
    all_above += greater[w];
    if (w < warp) {
      above += greater[w];
      same += equal[w];
    }
  }
  const uint32_t before = (1u << lane) - 1;
  for (uint32_t first = begin; first < end; first += 32) {
    const uint32_t i = first + lane;
    const bool in = i < end;
    const uint32_t key = in ? keys[i] : 0;
    const uint32_t is_above = __ballot_sync(~0u, in && key > cut.threshold);
    const uint32_t is_same = __ballot_sync(~0u, in && key == cut.threshold);
    const uint64_t winner = (uint64_t{key} << 32) | ~i;
    if ((is_above >> lane & 1) != 0) {
      scratch.winners[above + __popc(is_above & before)] = winner;
    } else if ((is_same >> lane & 1) != 0) {
      const uint32_t rank = same + __popc(is_same & before);
      if (rank < cut.ties) scratch.winners[all_above + rank] = winner;
    }
    above += __popc(is_above);
    same += __popc(is_same);
  }
}

// Bitonic, greatest first. n: a power of two, at least 64. A warp's 32 pairs at a stride of 32 or
// less lie in 64 neighbours, which are its own until the stride grows again.
__device__ inline void SortWinners(uint64_t* winners, uint32_t n, uint32_t tid) {
  for (uint32_t size = 2; size <= n; size *= 2) {
    for (uint32_t stride = size / 2; stride > 0; stride /= 2) {
      for (uint32_t t = tid; t < n / 2; t += kRankThreads) {
        const uint32_t i = 2 * t - (t & (stride - 1));
        const uint64_t a = winners[i], b = winners[i + stride];
        if ((a < b) == ((i & size) == 0)) {
          winners[i] = b;
          winners[i + stride] = a;
        }
      }
      const uint32_t next = stride > 1 ? stride / 2 : size;
      if (stride > 32 || next > 32) {
        RankSync();
      } else {
        __syncwarp();
      }
    }
  }
  RankSync();
}

// Indices of the k greatest of keys[0..n) into out[0..k), greatest first, equal ones by lower
// index; where n < k the rest is -1. Called by kRankThreads threads, numbered by `tid`, with the
// keys visible to all; nobody uses keys or scratch any more when one of them has left.
__device__ inline void RankKeys(const uint32_t* keys, uint32_t n, uint32_t k, int32_t* out,
                                const RankScratch& scratch, uint32_t tid) {
  const uint32_t found = min(n, k);
  RankCut cut{0, 0, n};
  if (n > k) cut = FindCut(keys, n, k, scratch, tid);
  const uint32_t size = SortSize(cut.count);
  for (uint32_t i = tid; i < size; i += kRankThreads) {
    scratch.winners[i] = i < n && n <= k ? (uint64_t{keys[i]} << 32) | ~i : 0;
  }
  RankSync();
  if (n > k) {
    Compact(keys, n, cut, scratch, tid);
    RankSync();
  }
  SortWinners(scratch.winners, size, tid);
  for (uint32_t i = tid; i < k; i += kRankThreads) {
    out[i] = i < found ? static_cast<int32_t>(~static_cast<uint32_t>(scratch.winners[i])) : -1;
  }
  RankSync();
}

}  // namespace oasiskv::gpu
