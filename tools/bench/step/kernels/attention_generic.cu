// The kernel for shapes that the tensor-core one does not take (MLA): a CTA per (row, head, query
// vector), a warp per page, lanes over dims. Right, and not fast: query heads read a page again
// from L2.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "client/working_set/cuda/kernels/entry.cuh"
#include "tools/bench/step/kernels/attention.h"
#include "tools/bench/step/kernels/attention_pages.cuh"

namespace oasiskv::bench::step {
namespace {

constexpr uint32_t kWarps = 8;
constexpr uint32_t kMaxDim = 1024;
constexpr uint32_t kPairs = kMaxDim / 64;  // pairs of elements of a lane

struct Params {
  AttentionShape shape;
  PageLayout pages;
  PageSet set;
  const __nv_bfloat16* queries;
  __nv_bfloat16* out;
};

__device__ inline float WarpSum(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

__global__ void __launch_bounds__(kWarps * 32) GenericKernel(const __grid_constant__ Params p) {
  __shared__ PageList list;
  __shared__ float max_of[kWarps], sum_of[kWarps];
  __shared__ float sums[kWarps][kMaxDim];
  const AttentionShape& sh = p.shape;
  const uint32_t vectors = sh.query_rows * sh.group;
  const uint32_t n = blockIdx.x % vectors, pair = blockIdx.x / vectors;
  const uint32_t head = pair % sh.kv_heads, row = pair / sh.kv_heads;
  if (p.set.count != nullptr && row >= *p.set.count) return;
  const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const uint64_t vector = (uint64_t{n / sh.group} * sh.max_rows + row) * sh.kv_heads * sh.group +
                          uint64_t{head} * sh.group + n % sh.group;
  const auto* query = reinterpret_cast<const __nv_bfloat162*>(p.queries + vector * sh.head_dim);
  float2 q[kPairs] = {}, o[kPairs] = {};
  for (uint32_t i = 0; i < kPairs; ++i) {
    const uint32_t at = i * 32 + lane;
    if (at < sh.head_dim / 2) q[i] = __bfloat1622float2(query[at]);
  }
  float max = -INFINITY, sum = 0;
  const uint32_t pages = PagesOf(p.set);
  for (uint32_t first = 0; first < pages; first += kMaxPagesOfCta) {
    const uint32_t last = min(pages, first + kMaxPagesOfCta);
    ListPages(p.set, row, head, sh.kv_heads, first, last, list);
    for (uint32_t i = warp; i < list.count; i += kWarps) {
      const uint32_t tokens = i + 1 == list.count ? list.last_tokens : kPageTokens;
      const int64_t base =
          list.physical[i] * p.pages.page_stride + int64_t{head} * p.pages.head_stride;
      for (uint32_t t = 0; t < tokens; ++t) {
        const int64_t at = base + int64_t{t} * p.pages.token_stride;
        const auto* k = reinterpret_cast<const __nv_bfloat162*>(p.pages.k + at);
        const auto* v = reinterpret_cast<const __nv_bfloat162*>(p.pages.v + at);
        float dot = 0;
#pragma unroll
        for (uint32_t j = 0; j < kPairs; ++j) {
          if (j * 32 + lane < sh.head_dim / 2) {
            const float2 x = __bfloat1622float2(k[j * 32 + lane]);
            dot += q[j].x * x.x + q[j].y * x.y;
          }
        }
        const float score = WarpSum(dot) * sh.scale;
        const float now = fmaxf(max, score), w = expf(max - now), e = expf(score - now);
        max = now;
        sum = sum * w + e;
#pragma unroll
        for (uint32_t j = 0; j < kPairs; ++j) {
          if (j * 32 + lane < sh.value_dim / 2) {
            const float2 x = __bfloat1622float2(v[j * 32 + lane]);
            o[j].x = o[j].x * w + e * x.x;
            o[j].y = o[j].y * w + e * x.y;
          }
        }
      }
    }
    __syncthreads();  // the list is used again
  }
  if (lane == 0) {
    max_of[warp] = max;
    sum_of[warp] = sum;
  }
#pragma unroll
  for (uint32_t j = 0; j < kPairs; ++j) {
    const uint32_t at = j * 32 + lane;
    if (at < sh.value_dim / 2) {
      sums[warp][2 * at] = o[j].x;
      sums[warp][2 * at + 1] = o[j].y;
    }
  }
  __syncthreads();
  float all = -INFINITY;
  for (uint32_t w = 0; w < kWarps; ++w) all = fmaxf(all, max_of[w]);
  for (uint32_t d = threadIdx.x; d < sh.value_dim; d += blockDim.x) {
    float value = 0, weight = 0;
    for (uint32_t w = 0; w < kWarps; ++w) {
      const float f = all == -INFINITY ? 0.0f : expf(max_of[w] - all);
      value += f * sums[w][d];
      weight += f * sum_of[w];
    }
    p.out[vector * sh.value_dim + d] = __float2bfloat16(weight > 0 ? value / weight : 0.0f);
  }
}

}  // namespace

LaunchError AttendGeneric(const AttentionShape& shape, const PageLayout& pages, const PageSet& set,
                          const void* queries, void* out, Stream stream) {
  if (shape.head_dim > kMaxDim || shape.value_dim > shape.head_dim || shape.head_dim % 2 != 0) {
    return "attention takes an even head_dim of at most 1024 and a value no longer than it";
  }
  Params params{shape, pages, set, static_cast<const __nv_bfloat16*>(queries),
                static_cast<__nv_bfloat16*>(out)};
  const uint32_t ctas = shape.max_rows * shape.kv_heads * shape.query_rows * shape.group;
  GenericKernel<<<ctas, kWarps * 32, 0, stream>>>(params);
  return gpu::Launched();
}

}  // namespace oasiskv::bench::step
