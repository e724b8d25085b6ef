// What the true selection finds: in the prediction, and among the pages.
#include "client/working_set/cuda/kernels/entry.cuh"
#include "client/working_set/cuda/kernels/kernels.h"
#include "client/working_set/cuda/kernels/layout.h"

namespace oasiskv::gpu {
namespace {

constexpr uint32_t kThreads = 128;

// One CTA per (row, head). Shared: a bit for each block.
__global__ void __launch_bounds__(kThreads)
    CompareTopKKernel(Shape shape, LayerMemory mem, Rows rows, const int32_t* truth,
                      SlotCounters* counters) {
  extern __shared__ uint32_t predicted[];
  const uint32_t row = blockIdx.x / shape.kv_heads, head = blockIdx.x % shape.kv_heads;
  if (row >= ActiveRows(rows)) return;
  const uint32_t slot = rows.slots[row];
  const uint64_t list = (uint64_t{slot} * shape.kv_heads + head) * shape.resident;
  if (mem.predicted[list] < 0) return;  // nothing was predicted yet

  for (uint32_t w = threadIdx.x; w < (shape.max_blocks + 31) / 32; w += kThreads) predicted[w] = 0;
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < shape.resident; i += kThreads) {
    const uint32_t block = static_cast<uint32_t>(mem.predicted[list + i]);
    if (block < shape.max_blocks) atomicOr(&predicted[block / 32], 1u << block % 32);
  }
  __syncthreads();
  uint32_t of = 0, common = 0;
  for (uint32_t first = 0; first < shape.resident; first += kThreads) {
    const uint32_t i = first + threadIdx.x;
    const uint32_t block =
        i < shape.resident ? static_cast<uint32_t>(truth[list + i]) : shape.max_blocks;
    const bool is_block = block < shape.max_blocks;
    of += __syncthreads_count(is_block);
    common += __syncthreads_count(is_block && (predicted[block / 32] >> block % 32 & 1) != 0);
  }
  if (threadIdx.x != 0 || of == 0) return;
  atomicAdd(&counters[slot].agreement_samples, 1ull);
  atomicAdd(&counters[slot].agreement_common, static_cast<unsigned long long>(common));
  atomicAdd(&counters[slot].agreement_of, static_cast<unsigned long long>(of));
}

// One CTA a (row, head). The map passes through shared memory in tiles, a thread holds one block.
__global__ void FindKernel(Shape shape, LayerMemory mem, Rows rows, Resolution out,
                           bool count_skipped, SlotCounters* counters) {
  const uint32_t row = blockIdx.x / shape.kv_heads, head = blockIdx.x % shape.kv_heads;
  if (row >= ActiveRows(rows)) return;
  const uint32_t slot = static_cast<uint32_t>(rows.slots[row]), pages = shape.resident;
  const size_t place = (size_t{slot} * shape.kv_heads + head) * pages;
  __shared__ int32_t tile[kThreads];
  uint32_t missing = 0;
  for (uint32_t base = 0; base < pages; base += kThreads) {
    const uint32_t i = base + threadIdx.x;
    const int32_t block = i < pages ? mem.predicted[place + i] : -1;
    int32_t found = -1;
    for (uint32_t from = 0; from < pages; from += kThreads) {
      const uint32_t here = min(kThreads, pages - from);
      __syncthreads();
      if (threadIdx.x < here) tile[threadIdx.x] = mem.map[place + from + threadIdx.x];
      __syncthreads();
      if (block < 0) continue;
      for (uint32_t p = 0; p < here; ++p) {
        if (tile[p] == block) found = static_cast<int32_t>(from + p);
      }
    }
    if (i < pages) out.pages[blockIdx.x * size_t{pages} + i] = found;
    missing += block >= 0 && found < 0 ? 1 : 0;
  }
  if (missing == 0) return;
  atomicAdd(&out.missing[row], missing);
  if (count_skipped) {
    atomicAdd(&counters[slot].skipped, static_cast<unsigned long long>(missing));
  }
}

}  // namespace

LaunchError CompareTopK(const Shape& shape, const LayerMemory& mem, const Rows& rows,
                        const int32_t* truth, SlotCounters* counters, Stream stream) {
  if (rows.max_rows == 0) return nullptr;
  const uint32_t bytes = (shape.max_blocks + 31) / 32 * 4;
  CompareTopKKernel<<<rows.max_rows * shape.kv_heads, kThreads, bytes, stream>>>(shape, mem, rows,
                                                                                 truth, counters);
  return Launched();
}

LaunchError FindPages(const Shape& shape, const LayerMemory& mem, const Rows& rows,
                      const Resolution& out, bool count_skipped, SlotCounters* counters,
                      Stream stream) {
  if (rows.max_rows == 0) return nullptr;
  if (const cudaError_t error =
          cudaMemsetAsync(out.missing, 0, rows.max_rows * sizeof(*out.missing), stream);
      error != cudaSuccess) {
    return cudaGetErrorString(error);
  }
  FindKernel<<<rows.max_rows * shape.kv_heads, kThreads, 0, stream>>>(shape, mem, rows, out,
                                                                      count_skipped, counters);
  return Launched();
}

}  // namespace oasiskv::gpu
