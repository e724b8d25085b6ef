#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "client/working_set/cuda/kernels/entry.cuh"
#include "tools/bench/rig/summary_number.cuh"
#include "tools/bench/step/kernels/small_kernels.h"

namespace oasiskv::bench::step {
namespace {

constexpr uint32_t kThreads = 256;

uint32_t Ctas(uint64_t items, uint64_t limit = 8192) {
  return static_cast<uint32_t>(std::clamp<uint64_t>((items + kThreads - 1) / kThreads, 1, limit));
}

// A counter-based generator: bits depend on the number and the seed alone.
__device__ inline uint64_t Bits(uint64_t number, uint64_t seed) {
  uint64_t x = number * 0x9e3779b97f4a7c15ull + seed * 0xd1342543de82ef95ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}
__device__ inline float2 TwoNormals(uint64_t number, uint64_t seed) {
  const uint64_t bits = Bits(number, seed);
  const float u = (static_cast<float>(static_cast<uint32_t>(bits) >> 8) + 0.5f) * 0x1p-24f;
  const float v = static_cast<float>(static_cast<uint32_t>(bits >> 40)) * 0x1p-24f;
  const float r = sqrtf(-2.0f * __logf(u));
  float sin, cos;
  __sincosf(6.28318530718f * v, &sin, &cos);
  return {r * cos, r * sin};
}

__global__ void FillKernel(__nv_bfloat162* to, uint64_t pairs, float sigma, uint64_t seed) {
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < pairs; i += stride) {
    const float2 n = TwoNormals(i, seed);
    to[i] = __floats2bfloat162_rn(n.x * sigma, n.y * sigma);
  }
}

union Eight {
  uint4 word;
  __nv_bfloat162 pair[4];
};

__device__ inline float CtaSum(float x) {
  __shared__ float parts[kThreads / 32];
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  if ((threadIdx.x & 31) == 0) parts[threadIdx.x >> 5] = x;
  __syncthreads();
  x = 0;
  for (uint32_t i = 0; i < kThreads / 32; ++i) x += parts[i];
  return x;
}

__global__ void NormKernel(uint4* hidden, const uint4* y, uint4* out, uint32_t words) {
  const uint64_t row = uint64_t{blockIdx.x} * words;
  float squares = 0;
  for (uint32_t i = threadIdx.x; i < words; i += kThreads) {
    Eight h{hidden[row + i]};
    if (y != nullptr) {
      const Eight add{y[row + i]};
      for (int j = 0; j < 4; ++j) h.pair[j] = __hadd2(h.pair[j], add.pair[j]);
      hidden[row + i] = h.word;
    }
    for (int j = 0; j < 4; ++j) {
      const float2 f = __bfloat1622float2(h.pair[j]);
      squares += f.x * f.x + f.y * f.y;
    }
  }
  const float scale = rsqrtf(CtaSum(squares) / (words * 8.0f) + 1e-6f);
  for (uint32_t i = threadIdx.x; i < words; i += kThreads) {  // each its own words again
    Eight h{hidden[row + i]};
    for (int j = 0; j < 4; ++j) {
      const float2 f = __bfloat1622float2(h.pair[j]);
      h.pair[j] = __floats2bfloat162_rn(f.x * scale, f.y * scale);
    }
    out[row + i] = h.word;
  }
}

__device__ inline float Silu(float x) { return x / (1.0f + __expf(-x)); }

__global__ void GateKernel(const uint4* in, uint4* out, uint64_t rows, uint32_t words) {
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < rows * words;
       i += stride) {
    const uint64_t row = i / words, at = row * 2 * words + i % words;
    const Eight gate{in[at]}, up{in[at + words]};
    Eight result;
    for (int j = 0; j < 4; ++j) {
      const float2 g = __bfloat1622float2(gate.pair[j]), u = __bfloat1622float2(up.pair[j]);
      result.pair[j] = __floats2bfloat162_rn(Silu(g.x) * u.x, Silu(g.y) * u.y);
    }
    out[i] = result.word;
  }
}

__global__ void SampleKernel(const __nv_bfloat16* logits, int32_t* token, uint32_t vocab) {
  __shared__ float best_of[kThreads];
  __shared__ int32_t at_of[kThreads];
  const uint4* row = reinterpret_cast<const uint4*>(logits + uint64_t{blockIdx.x} * vocab);
  float best = -INFINITY;
  int32_t at = 0;
  for (uint32_t i = threadIdx.x; i < vocab / 8; i += kThreads) {
    const Eight e{row[i]};
    for (int j = 0; j < 4; ++j) {
      const float2 f = __bfloat1622float2(e.pair[j]);
      if (f.x > best) best = f.x, at = static_cast<int32_t>(i * 8 + 2 * j);
      if (f.y > best) best = f.y, at = static_cast<int32_t>(i * 8 + 2 * j + 1);
    }
  }
  best_of[threadIdx.x] = best;
  at_of[threadIdx.x] = at;
  for (uint32_t width = kThreads / 2; width > 0; width /= 2) {
    __syncthreads();
    if (threadIdx.x < width && best_of[threadIdx.x + width] > best_of[threadIdx.x]) {
      best_of[threadIdx.x] = best_of[threadIdx.x + width];
      at_of[threadIdx.x] = at_of[threadIdx.x + width];
    }
  }
  if (threadIdx.x == 0) token[blockIdx.x] = at_of[0];
}

__global__ void DenseAppendKernel(PageLayout pages, PageSet set, const __nv_bfloat16* kv,
                                  int64_t row_stride, uint32_t kv_heads, uint32_t head_dim,
                                  bool latent) {
  const uint32_t row = blockIdx.x, columns = kv_heads * head_dim;
  const int64_t page = set.table[uint64_t{row} * set.blocks + set.blocks - 1] * pages.page_stride;
  for (uint32_t i = threadIdx.x; i < columns; i += blockDim.x) {
    const int64_t at = page + int64_t{i / head_dim} * pages.head_stride +
                       int64_t{15} * pages.token_stride + int64_t{i % head_dim} * 2;
    const __nv_bfloat16* from = kv + row * row_stride + i;
    *reinterpret_cast<__nv_bfloat16*>(const_cast<std::byte*>(pages.k) + at) = *from;
    if (!latent) {
      *reinterpret_cast<__nv_bfloat16*>(const_cast<std::byte*>(pages.v) + at) = from[columns];
    }
  }
}

__global__ void WalkKernel(QueryWalk w, float noise) {
  const uint64_t pairs = w.layers * w.rows * w.columns / 2;
  const uint64_t of_layer = w.rows * w.columns / 2;
  const uint64_t step = *w.step;
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  auto* state = reinterpret_cast<float2*>(w.state);
  auto* queries = static_cast<__nv_bfloat162*>(w.queries);
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < pairs; i += stride) {
    const float2 old = state[i];
    const float2 n = TwoNormals(i + step * pairs, w.seed);
    const float2 now = {w.a * old.x + noise * n.x, w.a * old.y + noise * n.y};
    state[i] = now;
    const uint64_t layer = i / of_layer, at = layer * 2 * of_layer + i % of_layer;
    queries[at] = __floats2bfloat162_rn(old.x, old.y);
    queries[at + of_layer] = __floats2bfloat162_rn(now.x, now.y);
  }
}

__global__ void SummariseKernel(FrameShape shape, std::byte* frames) {
  std::byte* frame = frames + blockIdx.y * shape.frame_bytes;
  const auto* keys =
      reinterpret_cast<const __nv_bfloat16*>(frame + uint64_t{blockIdx.x} * shape.entry_bytes);
  auto* summary =
      reinterpret_cast<__nv_bfloat16*>(frame + uint64_t{shape.entries} * shape.entry_bytes) +
      uint64_t{blockIdx.x} * 2 * shape.head_dim;
  for (uint32_t d = threadIdx.x; d < shape.head_dim; d += blockDim.x) {
    __nv_bfloat16 min = keys[d], max = keys[d];
    for (uint32_t t = 1; t < 16; ++t) {
      const __nv_bfloat16 x = keys[t * shape.head_dim + d];
      min = __hmin(min, x);
      max = __hmax(max, x);
    }
    summary[d] = min;
    summary[shape.head_dim + d] = max;
  }
}

__global__ void FillSummariesKernel(SummaryType type, void* to, uint64_t count, uint32_t head_dim,
                                    uint64_t seed) {
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count * head_dim;
       i += stride) {
    float min = INFINITY, max = -INFINITY;
    for (uint32_t t = 0; t < 8; ++t) {
      const float2 n = TwoNormals(i * 8 + t, seed);
      min = fminf(min, fminf(n.x, n.y));
      max = fmaxf(max, fmaxf(n.x, n.y));
    }
    const uint64_t at = i / head_dim * 2 * head_dim + i % head_dim;
    StoreSummaryNumber(type, to, at, min, false);
    StoreSummaryNumber(type, to, at + head_dim, max, true);
  }
}

__global__ void NextStepKernel(uint64_t* step) { ++*step; }

}  // namespace

LaunchError FillNormal(void* to, uint64_t elements, float sigma, uint64_t seed, Stream stream) {
  FillKernel<<<Ctas(elements / 2), kThreads, 0, stream>>>(static_cast<__nv_bfloat162*>(to),
                                                          elements / 2, sigma, seed);
  return gpu::Launched();
}

LaunchError AddAndNorm(void* hidden, const void* y, void* out, uint32_t rows, uint32_t columns,
                       Stream stream) {
  NormKernel<<<rows, kThreads, 0, stream>>>(static_cast<uint4*>(hidden),
                                            static_cast<const uint4*>(y), static_cast<uint4*>(out),
                                            columns / 8);
  return gpu::Launched();
}

LaunchError GateTimesUp(const void* in, void* out, uint64_t rows, uint32_t columns, Stream stream) {
  GateKernel<<<Ctas(rows * columns / 8), kThreads, 0, stream>>>(
      static_cast<const uint4*>(in), static_cast<uint4*>(out), rows, columns / 8);
  return gpu::Launched();
}

LaunchError Sample(const void* logits, int32_t* token, uint32_t rows, uint32_t vocab,
                   Stream stream) {
  SampleKernel<<<rows, kThreads, 0, stream>>>(static_cast<const __nv_bfloat16*>(logits), token,
                                              vocab);
  return gpu::Launched();
}

LaunchError DenseAppend(const PageLayout& pages, const PageSet& set, const void* kv,
                        int64_t row_stride, uint32_t rows, uint32_t kv_heads, uint32_t head_dim,
                        bool latent, Stream stream) {
  DenseAppendKernel<<<rows, kThreads, 0, stream>>>(
      pages, set, static_cast<const __nv_bfloat16*>(kv), row_stride, kv_heads, head_dim, latent);
  return gpu::Launched();
}

LaunchError AdvanceQueries(const QueryWalk& walk, Stream stream) {
  WalkKernel<<<Ctas(walk.layers * walk.rows * walk.columns / 2), kThreads, 0, stream>>>(
      walk, sqrtf(1.0f - walk.a * walk.a));
  NextStepKernel<<<1, 1, 0, stream>>>(walk.step);
  return gpu::Launched();
}

LaunchError SummariseFrames(const FrameShape& shape, std::byte* frames, uint32_t count,
                            Stream stream) {
  SummariseKernel<<<dim3(shape.entries, count), 128, 0, stream>>>(shape, frames);
  return gpu::Launched();
}

LaunchError FillSummaries(SummaryType type, void* to, uint64_t count, uint32_t head_dim,
                          uint64_t seed, Stream stream) {
  FillSummariesKernel<<<Ctas(count * head_dim), kThreads, 0, stream>>>(type, to, count, head_dim,
                                                                       seed);
  return gpu::Launched();
}

}  // namespace oasiskv::bench::step
