// The capped delta of a prediction against the residents, one CTA for each (row, head).
#include <algorithm>
#include <bit>

#include "client/working_set/cuda/kernels/entry.cuh"
#include "client/working_set/cuda/kernels/kernels.h"

namespace oasiskv::gpu {
namespace {

constexpr uint64_t kNoVictim = ~uint64_t{0};

// Shared memory of a CTA, in this order.
struct Layout {
  uint32_t sorted;       // keys: a power of two, K or more
  uint32_t list_words;   // bits of list places
  uint32_t block_words;  // bits of blocks

  __host__ __device__ size_t Bytes(uint32_t resident) const {
    return sorted * sizeof(uint64_t) + resident * sizeof(int32_t) +
           (list_words + 2 * size_t{block_words}) * sizeof(uint32_t);
  }
};

__device__ bool Has(const uint32_t* bits, uint32_t i) { return (bits[i / 32] >> (i % 32)) & 1; }

// Sorts n keys, a power of two from 32 up; called by all threads, which number n or 1,024. Bitonic:
// partners within a warp meet in registers, so that few steps need a barrier.
__device__ void Sort(uint64_t* keys, uint32_t n) {
  const uint32_t tid = threadIdx.x;
  if (n == blockDim.x) {
    uint64_t key = keys[tid];
    for (uint32_t size = 2; size <= n; size *= 2) {
      for (uint32_t apart = size / 2; apart > 0; apart /= 2) {
        uint64_t other;
        if (apart < 32) {
          other = __shfl_xor_sync(~0u, key, apart);
        } else {
          __syncthreads();  // what stood here has been read
          keys[tid] = key;
          __syncthreads();
          other = keys[tid ^ apart];
        }
        const bool lower = (tid & apart) == 0, rising = (tid & size) == 0;
        if ((lower == rising) == (other < key)) key = other;
      }
    }
    __syncthreads();
    keys[tid] = key;
    __syncthreads();
    return;
  }
  for (uint32_t size = 2; size <= n; size *= 2) {
    for (uint32_t apart = size / 2; apart > 0; apart /= 2) {
      for (uint32_t i = tid; i < n / 2; i += blockDim.x) {
        const uint32_t low = ((i & ~(apart - 1)) << 1) | (i & (apart - 1));
        const uint32_t high = low | apart;
        const bool rising = (low & size) == 0;
        const uint64_t a = keys[low], b = keys[high];
        if ((a > b) == rising) {
          keys[low] = b;
          keys[high] = a;
        }
      }
      __syncthreads();
    }
  }
}

__global__ void SelectKernel(Shape shape, LayerMemory mem, Rows rows, bool predicts, uint32_t cap,
                             Plan plan, SlotCounters* counters, Layout layout) {
  extern __shared__ uint64_t keys[];                                       // [sorted]
  int32_t* const list = reinterpret_cast<int32_t*>(keys + layout.sorted);  // [K]
  uint32_t* const misses = reinterpret_cast<uint32_t*>(list + shape.resident);
  uint32_t* const listed = misses + layout.list_words;  // blocks of the list
  uint32_t* const held = listed + layout.block_words;   // blocks of the map
  __shared__ uint32_t length, first, granted;

  const uint32_t row = blockIdx.x / shape.kv_heads, head = blockIdx.x % shape.kv_heads;
  if (row >= ActiveRows(rows)) return;
  const uint32_t tid = threadIdx.x, pages = shape.resident;
  const uint32_t slot = static_cast<uint32_t>(rows.slots[row]);
  PlanGroup* const group = &plan.groups[blockIdx.x];

  // The CTAs of all heads read the same clock, which only Commit moves; `promoted` and `pending`
  // are written by that of head 0 and read by none of this launch.
  SlotState* const state = &mem.state[slot];
  const uint64_t now = state->clock + 1;
  const bool full = state->local_tokens == shape.block_tokens && !plan.resolve;
  const int32_t promoted = full ? static_cast<int32_t>(state->complete) : -1;
  if (!predicts && promoted < 0) {
    if (tid == 0) *group = PlanGroup{};
    return;
  }
  const size_t place = (size_t{slot} * shape.kv_heads + head) * pages;
  int32_t* const predicted = mem.predicted + place;
  const int32_t* const map = mem.map + place;
  uint64_t* const stamps = mem.stamps + place;

  if (tid == 0) {
    length = predicts ? pages : 0;
    if (head == 0) {
      state->promoted = promoted;
      state->pending = 1;
    }
  }
  for (uint32_t i = tid; i < 2 * layout.block_words; i += blockDim.x) listed[i] = 0;
  __syncthreads();

  // The list ends before its first -1; no block at or beyond max_blocks is ever one of it.
  if (predicts) {
    for (uint32_t i = tid; i < pages; i += blockDim.x) {
      const int32_t block = predicted[i];
      list[i] = block;
      if (static_cast<uint32_t>(block) >= shape.max_blocks) atomicMin(&length, i);
    }
    __syncthreads();
  }
  if (promoted >= 0) {
    bool found = false;
    for (uint32_t i = tid; i < length; i += blockDim.x) found |= list[i] == promoted;
    found = __syncthreads_or(found) != 0;
    if (tid == 0 && !found) {
      const uint32_t at = min(length, pages - 1);
      list[at] = promoted;
      length = at + 1;
      if (predicts) predicted[at] = promoted;
    }
  }
  __syncthreads();

  const uint32_t listed_blocks = length;
  for (uint32_t i = tid; i < listed_blocks; i += blockDim.x) {
    const uint32_t block = static_cast<uint32_t>(list[i]);
    if (block < shape.max_blocks) atomicOr(&listed[block / 32], 1u << (block % 32));
  }
  for (uint32_t p = tid; p < pages; p += blockDim.x) {
    const uint32_t block = static_cast<uint32_t>(map[p]);
    if (block < shape.max_blocks) atomicOr(&held[block / 32], 1u << (block % 32));
  }
  __syncthreads();

  // Keys rise in the order of eviction: empty pages by page, then residents that the list lacks by
  // stamp and page.
  for (uint32_t p = tid; p < layout.sorted; p += blockDim.x) {
    uint64_t key = kNoVictim;
    if (p < pages) {
      const uint32_t block = static_cast<uint32_t>(map[p]);
      if (block >= shape.max_blocks) {
        key = p;
      } else if (Has(listed, block)) {
        stamps[p] = now;
      } else {
        key = ((stamps[p] + 1) << 16) | p;
      }
    }
    keys[p] = key;
  }
  for (uint32_t i = tid; i < layout.list_words * 32; i += blockDim.x) {  // whole warps
    const bool miss =
        i < listed_blocks && list[i] != promoted && !Has(held, static_cast<uint32_t>(list[i]));
    const uint32_t bits = __ballot_sync(~0u, miss);
    if (tid % 32 == 0) misses[i / 32] = bits;
  }
  __syncthreads();

  uint32_t missing = 0;
  for (uint32_t w = 0; w < layout.list_words; ++w) missing += __popc(misses[w]);
  const uint32_t extra = promoted >= 0 ? 1 : 0;
  const uint32_t wanted = min(min(missing, cap) + extra, pages);
  if (wanted > 0) Sort(keys, layout.sorted);
  if (tid == 0) {
    // There is a victim for every miss as long as maps and lists name a block once.
    uint32_t count = wanted;
    while (count > 0 && keys[count - 1] == kNoVictim) --count;
    first = count > 0 ? atomicAdd(plan.count, count) : 0;
    count = first < plan.capacity ? min(count, plan.capacity - first) : 0;
    granted = count;
    *group = PlanGroup{.first = first, .count = count};
    if (predicts && !plan.resolve) {
      SlotCounters* const of_slot = &counters[slot];
      if (head == 0) atomicAdd(&of_slot->steps, 1ull);
      const uint32_t hits = listed_blocks - missing - extra;
      const uint32_t from_source = count > extra ? count - extra : 0;
      atomicAdd(&of_slot->predicted, static_cast<unsigned long long>(listed_blocks));
      atomicAdd(&of_slot->hit, static_cast<unsigned long long>(hits));
      atomicAdd(&of_slot->refused, static_cast<unsigned long long>(missing - from_source));
    }
  }
  __syncthreads();

  const auto item = [&](uint32_t at, uint16_t flags, int32_t block) {
    plan.items[first + at] = PlanItem{.slot = static_cast<uint16_t>(slot),
                                      .head = static_cast<uint16_t>(head),
                                      .page = static_cast<uint16_t>(keys[at]),
                                      .flags = flags,
                                      .block = block,
                                      .row = static_cast<int32_t>(row)};
  };
  if (tid == 0 && extra == 1 && granted > 0) {
    item(0, kItemPromoted, promoted);
  }
  for (uint32_t i = tid; i < listed_blocks; i += blockDim.x) {
    const uint32_t word = misses[i / 32];
    if (((word >> (i % 32)) & 1) == 0) continue;
    uint32_t at = extra + __popc(word & ((1u << (i % 32)) - 1));
    for (uint32_t w = 0; w < i / 32; ++w) at += __popc(misses[w]);
    if (at < granted) item(at, 0, list[i]);
  }
}

}  // namespace

LaunchError Select(const Shape& shape, const LayerMemory& mem, const Rows& rows, bool predicts,
                   uint32_t cap, const Plan& plan, SlotCounters* counters, Stream stream) {
  if (shape.resident == 0 || shape.resident >= (1u << 16) || shape.slots > (1u << 16) ||
      shape.kv_heads > (1u << 16)) {
    return "Select: resident blocks, slots or heads do not fit the 16 bits that a plan gives them";
  }
  const uint32_t sorted = std::max(std::bit_ceil(shape.resident), 32u);
  const Layout layout = {.sorted = sorted,
                         .list_words = (shape.resident + 31) / 32,
                         .block_words = (shape.max_blocks + 31) / 32};
  const size_t bytes = layout.Bytes(shape.resident);
  constexpr size_t kMostBytes = 227 << 10, kPlainBytes = 47 << 10;
  if (bytes > kMostBytes) {
    return "Select: resident_blocks and max_blocks together need more shared memory than a CTA has";
  }
  if (bytes > kPlainBytes) {
    const cudaError_t error = cudaFuncSetAttribute(
        SelectKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
    if (error != cudaSuccess) return cudaGetErrorString(error);
  }
  if (const cudaError_t error = cudaMemsetAsync(plan.count, 0, sizeof(*plan.count), stream);
      error != cudaSuccess) {
    return cudaGetErrorString(error);
  }
  const uint32_t ctas = rows.max_rows * shape.kv_heads;
  if (ctas == 0) return nullptr;
  SelectKernel<<<ctas, std::min(sorted, 1024u), bytes, stream>>>(shape, mem, rows, predicts, cap,
                                                                 plan, counters, layout);
  return Launched();
}

}  // namespace oasiskv::gpu
