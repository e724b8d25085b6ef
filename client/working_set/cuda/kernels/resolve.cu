// What the true selection finds among the pages.
#include "client/working_set/cuda/kernels/entry.cuh"
#include "client/working_set/cuda/kernels/kernels.h"

namespace oasiskv::gpu {
namespace {

constexpr uint32_t kThreads = 128;

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
