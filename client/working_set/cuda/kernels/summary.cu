#include "client/working_set/cuda/kernels/entry.cuh"
#include "client/working_set/cuda/kernels/kernels.h"
#include "client/working_set/cuda/kernels/layout.h"
#include "client/working_set/cuda/kernels/summarise.cuh"

namespace oasiskv::gpu {
namespace {

constexpr uint32_t kWarps = 8;

// One warp per (block, head), heads of one block beside each other.
__global__ void __launch_bounds__(kWarps * 32)
    BuildSummariesKernel(Shape shape, DensePages dense, uint32_t request, uint32_t first,
                         uint32_t blocks, std::byte* summaries) {
  const uint32_t task = blockIdx.x * kWarps + threadIdx.x / 32;
  if (task >= blocks * shape.kv_heads) return;
  const uint32_t block = first + task / shape.kv_heads, head = task % shape.kv_heads;
  const EntryView entry = DenseView(dense, request, block, head);
  SummariseWarp(shape.element, shape.summaries, shape.key_bytes, entry.k, entry.token_stride,
                shape.block_tokens,
                summaries + (uint64_t{head} * shape.max_blocks + block) * shape.summary_bytes,
                threadIdx.x % 32);
}

}  // namespace

LaunchError BuildSummaries(const Shape& shape, const DensePages& dense, uint32_t request,
                           uint32_t first, uint32_t blocks, std::byte* summaries, Stream stream) {
  if (const LaunchError error = CheckPieces(shape); error != nullptr) return error;
  const uint32_t tasks = blocks * shape.kv_heads;
  if (tasks == 0) return nullptr;
  BuildSummariesKernel<<<(tasks + kWarps - 1) / kWarps, kWarps * 32, 0, stream>>>(
      shape, dense, request, first, blocks, summaries);
  return Launched();
}

}  // namespace oasiskv::gpu
