// The k greatest of keys in shared memory, in order, by one CTA. Latency is what it costs: barriers
// are few, and no thread waits for what another finds out alone.
#pragma once

#include <cstdint>

#include "client/working_set/cuda/kernels/warp.cuh"

namespace oasiskv::gpu {

inline constexpr uint32_t kRankThreads = 128;
inline constexpr uint32_t kRankWarps = kRankThreads / 32;
inline constexpr uint32_t kRankDigits = 256;
inline constexpr uint32_t kRankPasses = 6;  // four over a key's digits, two over an index's
inline constexpr uint32_t kMostRanked = 65536;

// Shared memory of RankKeys, its arrays 16-byte aligned.
struct RankScratch {
  uint64_t* winners;     // [RankRoom(k)]
  uint32_t* histograms;  // [kRankPasses][kRankDigits]
  uint32_t* words;       // [kRankWords]
};
inline constexpr uint32_t kRankWords = 1 + 2 * kRankWarps;
// How many more than k are sorted rather than sifted further.
__host__ __device__ inline uint32_t RankRoom(uint32_t k) { return (k + 31) / 32 * 32 + 64; }

// Which keys are sorted: those above `key`, and those that equal it whose index is below `limit`.
struct RankCut {
  uint32_t key, limit;
  __device__ bool Takes(uint32_t k, uint32_t i) const { return k > key || (k == key && i < limit); }
};

// Where in a histogram the wanted place lies, counted from the highest digit.
struct RankPlace {
  uint32_t digit, above, count;
};

// Every warp finds the same. Pre-condition: 0 < need <= the sum of all counts.
__device__ inline RankPlace FindPlace(const uint32_t* histogram, uint32_t need) {
  const uint32_t lane = threadIdx.x % 32;  // it has eight digits, from 255 - 8 lane downwards
  const auto* const from = reinterpret_cast<const uint4*>(histogram + 248 - 8 * lane);
  const uint4 low = from[0], high = from[1];
  const uint32_t counts[8] = {high.w, high.z, high.y, high.x, low.w, low.z, low.y, low.x};
  uint32_t sum = 0;
#pragma unroll
  for (uint32_t b = 0; b < 8; ++b) sum += counts[b];
  const uint32_t upto = SumUpto(sum);
  RankPlace place{0, upto - sum, 0};
  const bool here = place.above < need && need <= upto;
#pragma unroll
  for (uint32_t b = 0; b < 8; ++b) {
    if (place.above < need && place.count == 0) {
      if (need <= place.above + counts[b]) {
        place.digit = 255 - 8 * lane - b;
        place.count = counts[b];
      } else {
        place.above += counts[b];
      }
    }
  }
  const int lane_of = __ffs(static_cast<int>(__ballot_sync(~0u, here))) - 1;
  return {__shfl_sync(~0u, place.digit, lane_of), __shfl_sync(~0u, place.above, lane_of),
          __shfl_sync(~0u, place.count, lane_of)};
}

// Radix select of 8 bits at a time, from the highest bit in which keys differ, then among equal
// keys by index; it ends as soon as few enough are left to sort. Pre-conditions: 0 < k < n, the
// histograms are zeros, `least` and `greatest` are those of all keys.
__device__ inline RankCut FindCut(const uint32_t* keys, uint32_t n, uint32_t k, uint32_t least,
                                  uint32_t greatest, uint32_t* histogram) {
  const uint32_t room = RankRoom(k);
  uint32_t need = k, prefix = greatest;
  if (least != greatest) {
    int shift = max(24 - __clz(least ^ greatest), 0);
    uint32_t mask = shift == 24 ? 0 : ~0u << (shift + 8);
    prefix &= mask;
    for (;; shift = max(shift - 8, 0)) {
#pragma unroll 8
      for (uint32_t i = threadIdx.x; i < n; i += kRankThreads) {
        const uint32_t key = keys[i];
        if ((key & mask) == prefix) atomicAdd(&histogram[(key >> shift) & 255], 1u);
      }
      __syncthreads();
      const RankPlace place = FindPlace(histogram, need);
      histogram += kRankDigits;
      need -= place.above;
      prefix |= place.digit << shift;
      mask |= 255u << shift;
      if (k - need + place.count <= room) return {prefix, kMostRanked};
      if (shift == 0) break;
    }
  }
  // Too many keys equal `prefix`. The first `need` of them: indices count from the greatest down.
  uint32_t mask = 0, last = 0;
  for (int shift = 8;; shift = 0) {
    for (uint32_t i = threadIdx.x; i < n; i += kRankThreads) {
      const uint32_t place = kMostRanked - 1 - i;
      if (keys[i] == prefix && (place & mask) == last) {
        atomicAdd(&histogram[(place >> shift) & 255], 1u);
      }
    }
    __syncthreads();
    const RankPlace place = FindPlace(histogram, need);
    histogram += kRankDigits;
    need -= place.above;
    last |= place.digit << shift;
    mask |= 255u << shift;
    if (k - need + place.count <= room || shift == 0) return {prefix, kMostRanked - last};
  }
}

// Puts the wanted keys into `winners` in any order, each above the complement of its index. `count`
// is shared memory and was 0.
__device__ inline void Compact(const uint32_t* keys, uint32_t n, const RankCut& cut,
                               uint64_t* winners, uint32_t* count) {
  uint32_t mine = 0;
#pragma unroll 8
  for (uint32_t i = threadIdx.x; i < n; i += kRankThreads) mine += cut.Takes(keys[i], i) ? 1 : 0;
  const uint32_t upto = SumUpto(mine);
  uint32_t at = 0;
  if (threadIdx.x % 32 == 31) at = atomicAdd(count, upto);
  at = __shfl_sync(~0u, at, 31) + upto - mine;
  if (mine == 0) return;
  for (uint32_t i = threadIdx.x; i < n; i += kRankThreads) {
    const uint32_t key = keys[i];
    if (cut.Takes(key, i)) winners[at++] = (uint64_t{key} << 32) | ~i;
  }
}

// Of a warp's 32 numbers, the greatest to lane 0 and so on. Bitonic.
__device__ inline uint64_t SortWarp(uint64_t mine) {
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (uint32_t size = 2; size <= 32; size *= 2) {
#pragma unroll
    for (uint32_t stride = size / 2; stride > 0; stride /= 2) {
      const uint64_t other = __shfl_xor_sync(~0u, mine, stride);
      const bool keeps_greater = ((lane & size) == 0) == ((lane & stride) == 0);
      mine = (mine > other) == keeps_greater ? mine : other;
    }
  }
  return mine;
}

// How many of 32 numbers in falling order are greater than `than`.
__device__ inline uint32_t CountGreater(const uint64_t* sorted, uint64_t than) {
  uint32_t count = 0;
#pragma unroll
  for (uint32_t half = 16; half > 0; half /= 2) {
    if (sorted[count + half - 1] > than) count += half;
  }
  return count + (sorted[count] > than ? 1 : 0);
}

// Indices of the k greatest of keys[0..n) into out[0..k), greatest first, equal ones by lower
// index; where n < k the rest is -1. n is at most kMostRanked. Called by all kRankThreads threads
// of the CTA, each of which has written keys of its own and knows their `least` and `greatest`
// (~0 and 0 where it has none).
__device__ inline void RankKeys(const uint32_t* keys, uint32_t n, uint32_t k, uint32_t least,
                                uint32_t greatest, int32_t* out, const RankScratch& scratch) {
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint32_t* const count = scratch.words;
  uint32_t* const of_warps = scratch.words + 1;
  for (uint32_t i = threadIdx.x; i < kRankPasses * kRankDigits / 4; i += kRankThreads) {
    reinterpret_cast<uint4*>(scratch.histograms)[i] = make_uint4(0, 0, 0, 0);
  }
  least = __reduce_min_sync(~0u, least);
  greatest = __reduce_max_sync(~0u, greatest);
  if (lane == 0) {
    of_warps[warp] = least;
    of_warps[kRankWarps + warp] = greatest;
  }
  if (threadIdx.x == 0) *count = 0;
  __syncthreads();

  RankCut cut{0, kMostRanked};  // all
  if (n > k) {
#pragma unroll
    for (uint32_t w = 0; w < kRankWarps; ++w) {
      least = min(least, of_warps[w]);
      greatest = max(greatest, of_warps[kRankWarps + w]);
    }
    cut = FindCut(keys, n, k, least, greatest, scratch.histograms);
  }
  Compact(keys, n, cut, scratch.winners, count);
  __syncthreads();

  const uint32_t found = *count, tiles = (found + 31) / 32;
  for (uint32_t t = warp; t < tiles; t += kRankWarps) {
    const uint32_t i = t * 32 + lane;
    scratch.winners[i] = SortWarp(i < found ? scratch.winners[i] : 0);
  }
  __syncthreads();
  for (uint32_t t = warp; t < tiles; t += kRankWarps) {
    const uint64_t mine = scratch.winners[t * 32 + lane];
    uint32_t rank = lane;
    for (uint32_t other = 0; other < tiles; ++other) {
      if (other != t) rank += CountGreater(scratch.winners + other * 32, mine);
    }
    if (rank < min(found, k)) out[rank] = static_cast<int32_t>(~static_cast<uint32_t>(mine));
  }
  for (uint32_t i = found + threadIdx.x; i < k; i += kRankThreads) out[i] = -1;
}

}  // namespace oasiskv::gpu
