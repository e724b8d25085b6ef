#include <cuda_bf16.h>

#include "client/working_set/cuda/kernels/entry.cuh"
#include "tools/bench/gpu/score_data.h"
#include "tools/bench/rig/summary_number.cuh"

namespace oasiskv::bench {
namespace {

// A number in [-1, 1) from a counter.
__device__ float Noise(uint64_t n) {
  n = (n ^ (n >> 31)) * 0x7fb5d329728ea185ull;
  n = (n ^ (n >> 27)) * 0x81dadef4bc2dd44dull;
  return static_cast<float>(static_cast<int32_t>(n >> 32)) * (1.0f / 2147483648.0f);
}

__global__ void FillSummariesKernel(SummaryType type, void* to, uint64_t pairs, uint32_t dim) {
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < pairs;
       i += uint64_t{gridDim.x} * blockDim.x) {
    const float middle = Noise(2 * i), half = 1.0f + Noise(2 * i + 1);
    const uint64_t at = i / dim * 2 * dim + i % dim;
    StoreSummaryNumber(type, to, at, middle - half, false);
    StoreSummaryNumber(type, to, at + dim, middle + half, true);
  }
}

__global__ void FillQueriesKernel(__nv_bfloat16* to, uint64_t count) {
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < count;
       i += uint64_t{gridDim.x} * blockDim.x) {
    to[i] = __float2bfloat16(2.0f * Noise(~i));
  }
}

}  // namespace

gpu::LaunchError FillSummaries(std::byte* summaries, uint64_t blocks, uint32_t head_dim,
                               cudaStream_t stream, SummaryType type) {
  FillSummariesKernel<<<4096, 256, 0, stream>>>(type, summaries, blocks * head_dim, head_dim);
  return gpu::Launched();
}

gpu::LaunchError FillQueries(std::byte* queries, uint64_t count, cudaStream_t stream) {
  FillQueriesKernel<<<256, 256, 0, stream>>>(reinterpret_cast<__nv_bfloat16*>(queries), count);
  return gpu::Launched();
}

}  // namespace oasiskv::bench
