#include <algorithm>

#include "client/working_set/cuda/kernels/entry.cuh"
#include "client/working_set/cuda/kernels/kernels.h"
#include "client/working_set/cuda/kernels/layout.h"

namespace oasiskv::gpu {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kWarps = kThreads / 32;
constexpr uint32_t kNever = 0xffffffffu;

// One CTA per (row, head): the list's candidates in its order, each once, at most K.
// Shared: first[max_blocks], where a block stands first in the list.
__global__ void __launch_bounds__(kThreads)
    LoadTopKKernel(Shape shape, LayerMemory mem, Rows rows, const int32_t* topk, uint32_t k) {
  extern __shared__ uint32_t first[];
  __shared__ uint32_t counts[kWarps];
  const uint32_t row = blockIdx.x / shape.kv_heads, head = blockIdx.x % shape.kv_heads;
  if (row >= ActiveRows(rows)) return;
  const uint32_t slot = rows.slots[row];
  const SlotState& state = mem.state[slot];
  const uint32_t candidates =
      Candidates(state, /*full_local=*/true, shape.block_tokens, shape.max_blocks);
  const int32_t* const list = topk + uint64_t{blockIdx.x} * k;
  int32_t* const out = mem.predicted + (uint64_t{slot} * shape.kv_heads + head) * shape.resident;

  for (uint32_t b = threadIdx.x; b < candidates; b += kThreads) first[b] = kNever;
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < k; i += kThreads) {
    const uint32_t block = static_cast<uint32_t>(list[i]);  // -1 is no candidate either
    if (block < candidates) atomicMin(&first[block], i);
  }
  __syncthreads();
  uint32_t taken = 0;  // by whole sweeps of the CTA so far
  for (uint32_t sweep = 0; sweep < k && taken < shape.resident; sweep += kThreads) {
    const uint32_t i = sweep + threadIdx.x;
    const uint32_t block = i < k ? static_cast<uint32_t>(list[i]) : kNever;
    const bool takes = block < candidates && first[block] == i;
    const uint32_t lanes = __ballot_sync(~0u, takes);
    if (threadIdx.x % 32 == 0) counts[threadIdx.x / 32] = __popc(lanes);
    __syncthreads();
    uint32_t place = taken + __popc(lanes & ((1u << threadIdx.x % 32) - 1));
    for (uint32_t w = 0; w < kWarps; ++w) {
      if (w < threadIdx.x / 32) place += counts[w];
      taken += counts[w];
    }
    if (takes && place < shape.resident) out[place] = static_cast<int32_t>(block);
    __syncthreads();  // before the counts of the next sweep
  }
  for (uint32_t i = min(taken, shape.resident) + threadIdx.x; i < shape.resident; i += kThreads) {
    out[i] = -1;
  }
}

}  // namespace

LaunchError LoadTopK(const Shape& shape, const LayerMemory& mem, const Rows& rows,
                     const int32_t* topk, uint32_t k, Stream stream) {
  if (rows.max_rows == 0) return nullptr;
  const uint32_t bytes = shape.max_blocks * 4;
  if (const cudaError_t error =
          cudaFuncSetAttribute(LoadTopKKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
      error != cudaSuccess) {
    return "top-K list: max_blocks too large for the shared memory of a multiprocessor";
  }
  LoadTopKKernel<<<rows.max_rows * shape.kv_heads, kThreads, bytes, stream>>>(shape, mem, rows,
                                                                              topk, k);
  return Launched();
}

}  // namespace oasiskv::gpu
