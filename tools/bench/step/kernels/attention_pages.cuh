// What both attention kernels share: the list of a CTA's pages.
#pragma once

#include <cuda_runtime.h>

#include "tools/bench/step/kernels/attention.h"

namespace oasiskv::bench::step {

inline constexpr uint32_t kMaxPagesOfCta = 512;
inline constexpr uint32_t kPageTokens = 16;

struct PageList {
  int32_t physical[kMaxPagesOfCta];
  uint32_t count;
  uint32_t last_tokens;  // valid tokens of the last page; the others are full
};

__device__ inline uint32_t PagesOf(const PageSet& set) {
  return set.map != nullptr ? set.resident + 1 : set.blocks;
}

// Pages [first, last) of (row, head) that hold something, in order. The whole CTA calls it; it ends
// with a barrier.
__device__ inline void ListPages(const PageSet& set, uint32_t row, uint32_t head, uint32_t kv_heads,
                                 uint32_t first, uint32_t last, PageList& list) {
  if (set.map == nullptr) {
    for (uint32_t i = threadIdx.x; first + i < last; i += blockDim.x) {
      list.physical[i] = set.table[uint64_t{row} * set.blocks + first + i];
    }
    if (threadIdx.x == 0) {
      list.count = last > first ? last - first : 0;
      list.last_tokens = kPageTokens;
    }
  } else if (threadIdx.x < 32) {
    const uint32_t lane = threadIdx.x;
    const uint32_t slot = static_cast<uint32_t>(set.slots[row]);
    const int32_t* map = set.map + (uint64_t{slot} * kv_heads + head) * set.resident;
    const uint32_t local = set.state[slot].local_tokens;
    const uint64_t base = uint64_t{slot} * (set.resident + 1);
    uint32_t count = 0;
    for (uint32_t p = first; p < last; p += 32) {
      const uint32_t page = p + lane;
      const bool held = page < last && (page < set.resident ? map[page] >= 0 : local > 0);
      const uint32_t ballot = __ballot_sync(0xffffffffu, held);
      if (held) {
        const uint32_t at = count + __popc(ballot & ((1u << lane) - 1));
        list.physical[at] =
            set.table != nullptr ? set.table[base + page] : static_cast<int32_t>(base + page);
      }
      count += __popc(ballot);
    }
    if (lane == 0) {
      list.count = count;
      list.last_tokens = last > set.resident && local > 0 ? local : kPageTokens;
    }
  }
  __syncthreads();
}

}  // namespace oasiskv::bench::step
