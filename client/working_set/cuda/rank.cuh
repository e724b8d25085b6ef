// The k greatest of keys in shared memory, by one CTA.
#pragma once

#include <cstdint>

namespace oasiskv::gpu {

inline constexpr uint32_t kRankThreads = 256;
inline constexpr uint32_t kRankWarps = kRankThreads / 32;

// Shared memory of RankKeys. `winners` has room for RankWinners(k).
struct RankScratch {
  uint64_t* winners;
  uint32_t* histogram;  // [kRankThreads]
  uint32_t* words;      // [kRankWords]
};
inline constexpr uint32_t kRankWords = 4 + 2 * kRankWarps;
__host__ __device__ inline uint32_t RankWinners(uint32_t k) {
  uint32_t n = 64;
  while (n < k) n *= 2;
  return n;
}

// Where the wanted keys end: keys above `threshold` are wanted, and the first `ties` that equal it.
struct RankCut {
  uint32_t threshold;
  uint32_t ties;
};

// Radix select, 8 bits at a time from the top. Pre-condition: 0 < k < n.
__device__ inline RankCut FindCut(const uint32_t* keys, uint32_t n, uint32_t k,
                                  const RankScratch& scratch) {
  const uint32_t tid = threadIdx.x;
  uint32_t prefix = 0, mask = 0, need = k;
  for (int shift = 24;; shift -= 8) {
    scratch.histogram[tid] = 0;
    __syncthreads();
    for (uint32_t i = tid; i < n; i += kRankThreads) {
      const uint32_t key = keys[i];
      if ((key & mask) == prefix) atomicAdd(&scratch.histogram[(key >> shift) & 255], 1u);
    }
    __syncthreads();
    if (tid < 32) {  // lane l has eight digits, from 255 - 8 l downwards
      uint32_t sum = 0;
      for (uint32_t b = 0; b < 8; ++b) sum += scratch.histogram[255 - 8 * tid - b];
      uint32_t upto = sum;
      for (uint32_t d = 1; d < 32; d *= 2) {
        const uint32_t other = __shfl_up_sync(~0u, upto, d);
        if (tid >= d) upto += other;
      }
      uint32_t above = upto - sum;
      if (above < need && need <= upto) {  // one lane
        uint32_t digit = 255 - 8 * tid;
        while (above + scratch.histogram[digit] < need) above += scratch.histogram[digit--];
        scratch.words[0] = digit;
        scratch.words[1] = above;
        scratch.words[2] = scratch.histogram[digit];
      }
    }
    __syncthreads();
    const uint32_t count = scratch.words[2];
    need -= scratch.words[1];
    prefix |= scratch.words[0] << shift;
    mask |= 255u << shift;
    // All of this digit are wanted; then prefix > 0, for not all of the n keys are.
    if (count == need) return {prefix - 1, 0};
    if (shift == 0) return {prefix, need};
  }
}

// Puts the wanted keys into scratch.winners, each above the complement of its index.
__device__ inline void Compact(const uint32_t* keys, uint32_t n, RankCut cut,
                               const RankScratch& scratch) {
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
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
  __syncthreads();
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
__device__ inline void SortWinners(uint64_t* winners, uint32_t n) {
  for (uint32_t size = 2; size <= n; size *= 2) {
    for (uint32_t stride = size / 2; stride > 0; stride /= 2) {
      for (uint32_t t = threadIdx.x; t < n / 2; t += kRankThreads) {
        const uint32_t i = 2 * t - (t & (stride - 1));
        const uint64_t a = winners[i], b = winners[i + stride];
        if ((a < b) == ((i & size) == 0)) {
          winners[i] = b;
          winners[i + stride] = a;
        }
      }
      const uint32_t next = stride > 1 ? stride / 2 : size;
      if (stride > 32 || next > 32) {
        __syncthreads();
      } else {
        __syncwarp();
      }
    }
  }
  __syncthreads();
}

// Indices of the k greatest of keys[0..n) into out[0..k), greatest first, equal ones by lower
// index; where n < k the rest is -1. Called by kRankThreads threads, with the keys visible to all;
// the caller puts a barrier between this and the next writing of keys or scratch.
__device__ inline void RankKeys(const uint32_t* keys, uint32_t n, uint32_t k, int32_t* out,
                                const RankScratch& scratch) {
  const uint32_t found = min(n, k);
  const uint32_t room = RankWinners(found);
  for (uint32_t i = threadIdx.x; i < room; i += kRankThreads) {
    scratch.winners[i] = i < n && n <= k ? (uint64_t{keys[i]} << 32) | ~i : 0;
  }
  __syncthreads();
  if (n > k) {
    const RankCut cut = FindCut(keys, n, k, scratch);
    Compact(keys, n, cut, scratch);
    __syncthreads();
  }
  SortWinners(scratch.winners, room);
  for (uint32_t i = threadIdx.x; i < k; i += kRankThreads) {
    out[i] = i < found ? static_cast<int32_t>(~static_cast<uint32_t>(scratch.winners[i])) : -1;
  }
}

}  // namespace oasiskv::gpu
