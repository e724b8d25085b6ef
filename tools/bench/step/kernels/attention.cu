// The tensor-core kernel. A warp takes a page at a time: S^T = K Q^T and O^T += V^T P^T with
// m16n8k16, M being the page's 16 tokens (then 16 dims) and N up to 8 query vectors of the KV head.
// Every byte of a page is read from HBM once, by cp.async into a ring of the warp's own, so that no
// barrier of the CTA stands in the stream. 16-byte chunk c of token t lies at chunk c ^ (t & 7):
// ldmatrix then touches all banks.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "client/working_set/cuda/kernels/entry.cuh"
#include "tools/bench/step/kernels/attention.h"
#include "tools/bench/step/kernels/attention_pages.cuh"

namespace oasiskv::bench::step {
namespace {

constexpr uint32_t kDim = 128;
constexpr uint32_t kWarps = 4;
constexpr uint32_t kThreads = kWarps * 32;
constexpr uint32_t kStages = 3;
constexpr uint32_t kRowBytes = kDim * 2;
constexpr uint32_t kHalfBytes = kPageTokens * kRowBytes;  // K or V of a page
constexpr uint32_t kStageBytes = 2 * kHalfBytes;
constexpr uint32_t kRingBytes = kWarps * kStages * kStageBytes;
constexpr float kNothing = -INFINITY;

__device__ inline uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ inline void CopyAsync(uint32_t to, const std::byte* from) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;\n" ::"r"(to), "l"(from)
               : "memory");
}
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
template <int kPending>
__device__ inline void WaitCopies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}
__device__ inline void LoadMatrices(uint32_t (&a)[4], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(at)
               : "memory");
}
__device__ inline void LoadTransposed(uint32_t (&a)[4], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(at)
               : "memory");
}
__device__ inline uint32_t Transpose(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(y) : "r"(x));
  return y;
}
__device__ inline void Multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ inline uint32_t Pack(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
// Over the 8 lanes that hold one column.
__device__ inline float ColumnMax(float x) {
  for (int step = 4; step < 32; step *= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}
__device__ inline float ColumnSum(float x) {
  for (int step = 4; step < 32; step *= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}
// 2^(x - base); a part that saw no page has base -inf and weighs nothing.
__device__ inline float Weight(float x, float base) {
  return base == kNothing ? 0.0f : exp2f(x - base);
}

struct Params {
  AttentionShape shape;
  PageLayout pages;
  PageSet set;
  const __nv_bfloat16* queries;
  __nv_bfloat16* out;
  float* parts;       // [row][head][split][vector][kDim + 2]: sums, max, weight
  uint32_t* tickets;  // [row][head]
  float scale_log2;
};

// kTiles tiles of 8 query vectors.
template <uint32_t kTiles>
struct WarpState {
  float o[kTiles][kDim / 16][4] = {};  // O^T: dims 16 i + g (+8), vectors 2c, 2c+1
  float max[kTiles][2];
  float sum[kTiles][2] = {};
};

template <uint32_t kTiles>
__device__ inline void ComputePage(uint32_t stage, uint32_t tokens, float scale_log2,
                                   const uint32_t (&q)[kTiles][kDim / 16][2],
                                   WarpState<kTiles>& st) {
  const uint32_t lane = threadIdx.x & 31, g = lane >> 2;
  const uint32_t row = lane & 15, row_at = stage + row * kRowBytes, row_swizzle = row & 7;
  float s[kTiles][2][4] = {};  // even and odd steps apart: two chains of dependent products
#pragma unroll
  for (uint32_t k = 0; k < kDim / 16; ++k) {
    uint32_t a[4];
    LoadMatrices(a, row_at + (((2 * k + (lane >> 4)) ^ row_swizzle) << 4));
#pragma unroll
    for (uint32_t t = 0; t < kTiles; ++t) Multiply(s[t][k & 1], a, q[t][k][0], q[t][k][1]);
  }
  uint32_t p[kTiles][2];
#pragma unroll
  for (uint32_t t = 0; t < kTiles; ++t) {
    float x[4];  // (token g, vectors 2c, 2c+1), (token g + 8, the same)
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) x[i] = (s[t][0][i] + s[t][1][i]) * scale_log2;
    if (tokens < kPageTokens) {
      if (g >= tokens) x[0] = x[1] = kNothing;
      if (g + 8 >= tokens) x[2] = x[3] = kNothing;
    }
    const float m0 = fmaxf(st.max[t][0], ColumnMax(fmaxf(x[0], x[2])));
    const float m1 = fmaxf(st.max[t][1], ColumnMax(fmaxf(x[1], x[3])));
    if (__any_sync(0xffffffffu, m0 > st.max[t][0] || m1 > st.max[t][1])) {
      const float w0 = exp2f(st.max[t][0] - m0), w1 = exp2f(st.max[t][1] - m1);
#pragma unroll
      for (uint32_t i = 0; i < kDim / 16; ++i) {
        st.o[t][i][0] *= w0;
        st.o[t][i][1] *= w1;
        st.o[t][i][2] *= w0;
        st.o[t][i][3] *= w1;
      }
      st.sum[t][0] *= w0;
      st.sum[t][1] *= w1;
      st.max[t][0] = m0;
      st.max[t][1] = m1;
    }
    x[0] = exp2f(x[0] - m0);
    x[1] = exp2f(x[1] - m1);
    x[2] = exp2f(x[2] - m0);
    x[3] = exp2f(x[3] - m1);
    st.sum[t][0] += x[0] + x[2];
    st.sum[t][1] += x[1] + x[3];
    // Rows are tokens, B wants them as columns.
    p[t][0] = Transpose(Pack(x[0], x[1]));
    p[t][1] = Transpose(Pack(x[2], x[3]));
  }
  const uint32_t token = (lane & 7) + ((lane >> 4) & 1) * 8;
  const uint32_t v_at = stage + kHalfBytes + token * kRowBytes;
#pragma unroll
  for (uint32_t i = 0; i < kDim / 16; ++i) {
    uint32_t a[4];
    LoadTransposed(a, v_at + (((2 * i + ((lane >> 3) & 1)) ^ (token & 7)) << 4));
#pragma unroll
    for (uint32_t t = 0; t < kTiles; ++t) Multiply(st.o[t][i], a, p[t][0], p[t][1]);
  }
}

// The last CTA of a (row, head) joins what all its CTAs left.
template <uint32_t kVectors>
__device__ inline void JoinSplits(const Params& p, const float* parts, uint32_t vectors,
                                  uint64_t out_row, uint64_t query_row_stride) {
  const uint32_t splits = p.shape.splits, d = threadIdx.x;
  for (uint32_t n = 0; n < vectors; ++n) {
    float max = kNothing;
    for (uint32_t s = 0; s < splits; ++s) {
      max = fmaxf(max, __ldcg(parts + (s * kVectors + n) * (kDim + 2) + kDim));
    }
    float o = 0, sum = 0;
    for (uint32_t s = 0; s < splits; ++s) {
      const float* part = parts + (s * kVectors + n) * (kDim + 2);
      const float w = Weight(__ldcg(part + kDim), max);
      o += w * __ldcg(part + d);
      sum += w * __ldcg(part + kDim + 1);
    }
    const uint32_t query_row = n / p.shape.group, j = n % p.shape.group;
    p.out[query_row * query_row_stride + out_row + uint64_t{j} * kDim + d] =
        __float2bfloat16(sum > 0 ? o / sum : 0.0f);
  }
}

template <uint32_t kTiles>
__global__ void __launch_bounds__(kThreads, 2) AttendKernel(const __grid_constant__ Params p) {
  constexpr uint32_t kVectors = kTiles * 8;
  extern __shared__ __align__(128) std::byte ring[];
  __shared__ PageList list;
  __shared__ float warp_max[kWarps][kVectors], warp_sum[kWarps][kVectors];
  __shared__ bool is_last;

  const uint32_t splits = p.shape.splits;
  const uint32_t split = blockIdx.x % splits, pair = blockIdx.x / splits;
  const uint32_t head = pair % p.shape.kv_heads, row = pair / p.shape.kv_heads;
  if (p.set.count != nullptr && row >= *p.set.count) return;
  const uint32_t pages = PagesOf(p.set);
  const uint32_t first = static_cast<uint32_t>(uint64_t{pages} * split / splits);
  const uint32_t last = static_cast<uint32_t>(uint64_t{pages} * (split + 1) / splits);
  ListPages(p.set, row, head, p.shape.kv_heads, first, last, list);
  const uint32_t count = list.count;

  const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, c = lane & 3;
  const uint32_t ring_at = SharedAddress(ring) + warp * kStages * kStageBytes;
  const uint32_t hi = lane >> 4, chunk = lane & 15;
  const int64_t lane_from = int64_t{head} * p.pages.head_stride +
                            int64_t{hi} * p.pages.token_stride + int64_t{chunk} * 16;
  const uint32_t lane_to = hi * kRowBytes, swizzled = (chunk ^ hi) << 4;
  const auto issue = [&](uint32_t i, uint32_t stage) {
    if (i < count) {
      const int64_t at = list.physical[i] * p.pages.page_stride + lane_from;
      const uint32_t to = ring_at + stage * kStageBytes + lane_to;
#pragma unroll
      for (uint32_t j = 0; j < kPageTokens / 2; ++j) {
        const uint32_t spot = to + j * 2 * kRowBytes + (swizzled ^ (((2 * j) & 7) << 4));
        CopyAsync(spot, p.pages.k + at + int64_t{2 * j} * p.pages.token_stride);
        CopyAsync(spot + kHalfBytes, p.pages.v + at + int64_t{2 * j} * p.pages.token_stride);
      }
    }
    CommitCopies();
  };
#pragma unroll
  for (uint32_t s = 0; s + 1 < kStages; ++s) issue(warp + s * kWarps, s);

  // Vector n is query row n / group, head head * group + n % group.
  const uint32_t vectors = p.shape.query_rows * p.shape.group;
  const uint64_t query_columns = uint64_t{p.shape.kv_heads} * p.shape.group * kDim;
  const uint64_t query_row_stride = p.shape.max_rows * query_columns;
  const uint64_t out_row = row * query_columns + uint64_t{head} * p.shape.group * kDim;
  uint32_t q[kTiles][kDim / 16][2];
#pragma unroll
  for (uint32_t t = 0; t < kTiles; ++t) {
    const uint32_t n = t * 8 + g;
    const uint32_t* from =
        reinterpret_cast<const uint32_t*>(p.queries + (n / p.shape.group) * query_row_stride +
                                          out_row + uint64_t{n % p.shape.group} * kDim);
#pragma unroll
    for (uint32_t k = 0; k < kDim / 16; ++k) {
      q[t][k][0] = n < vectors ? from[k * 8 + c] : 0;
      q[t][k][1] = n < vectors ? from[k * 8 + 4 + c] : 0;
    }
  }

  WarpState<kTiles> st;
#pragma unroll
  for (uint32_t t = 0; t < kTiles; ++t) st.max[t][0] = st.max[t][1] = kNothing;
  uint32_t stage = 0, next = kStages - 1;
  for (uint32_t i = warp; i < count; i += kWarps) {
    WaitCopies<kStages - 2>();
    __syncwarp();  // all lanes' copies of this page are seen, and all are done with the page before
    issue(i + (kStages - 1) * kWarps, next);
    ComputePage<kTiles>(ring_at + stage * kStageBytes,
                        i + 1 == count ? list.last_tokens : kPageTokens, p.scale_log2, q, st);
    stage = stage + 1 == kStages ? 0 : stage + 1;
    next = next + 1 == kStages ? 0 : next + 1;
  }
  WaitCopies<0>();
  __syncthreads();  // the ring is free

  float* sums = reinterpret_cast<float*>(ring);  // [warp][vector][kDim]
#pragma unroll
  for (uint32_t t = 0; t < kTiles; ++t) {
#pragma unroll
    for (uint32_t e = 0; e < 2; ++e) {
      const uint32_t n = t * 8 + 2 * c + e;
      const float sum = ColumnSum(st.sum[t][e]);
      if (g == 0) {
        warp_max[warp][n] = st.max[t][e];
        warp_sum[warp][n] = sum;
      }
#pragma unroll
      for (uint32_t i = 0; i < kDim / 16; ++i) {
        sums[(warp * kVectors + n) * kDim + 16 * i + g] = st.o[t][i][e];
        sums[(warp * kVectors + n) * kDim + 16 * i + g + 8] = st.o[t][i][2 + e];
      }
    }
  }
  __syncthreads();

  const uint32_t d = threadIdx.x;  // kThreads == kDim
  float* parts = p.parts + uint64_t{pair} * splits * kVectors * (kDim + 2);
  for (uint32_t n = 0; n < vectors; ++n) {
    float max = kNothing;
    for (uint32_t w = 0; w < kWarps; ++w) max = fmaxf(max, warp_max[w][n]);
    float o = 0, sum = 0;
    for (uint32_t w = 0; w < kWarps; ++w) {
      const float weight = Weight(warp_max[w][n], max);
      o += weight * sums[(w * kVectors + n) * kDim + d];
      sum += weight * warp_sum[w][n];
    }
    if (splits == 1) {
      p.out[(n / p.shape.group) * query_row_stride + out_row + uint64_t{n % p.shape.group} * kDim +
            d] = __float2bfloat16(sum > 0 ? o / sum : 0.0f);
    } else {
      float* part = parts + (split * kVectors + n) * (kDim + 2);
      part[d] = o;
      if (d == 0) {
        part[kDim] = max;
        part[kDim + 1] = sum;
      }
    }
  }
  if (splits == 1) return;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = atomicAdd(p.tickets + pair, 1u) == splits - 1;
    if (is_last) p.tickets[pair] = 0;  // for the next launch
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  JoinSplits<kVectors>(p, parts, vectors, out_row, query_row_stride);
}

static_assert(kThreads == kDim, "a thread joins one dim");
static_assert(kRingBytes >= kWarps * 16 * kDim * sizeof(float), "the sums reuse the ring");

template <uint32_t kTiles>
LaunchError Launch(const Params& params, Stream stream) {
  // Per device, and cheap: a flag that remembers it would have to be kept per device.
  const cudaError_t error = cudaFuncSetAttribute(
      AttendKernel<kTiles>, cudaFuncAttributeMaxDynamicSharedMemorySize, kRingBytes);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  const uint32_t ctas = params.shape.max_rows * params.shape.kv_heads * params.shape.splits;
  AttendKernel<kTiles><<<ctas, kThreads, kRingBytes, stream>>>(params);
  return gpu::Launched();
}

uint64_t VectorsOf(const AttentionShape& shape) {
  return (uint64_t{shape.query_rows} * shape.group + 7) / 8 * 8;
}

uint64_t PartsBytes(const AttentionShape& shape) {
  return uint64_t{shape.max_rows} * shape.kv_heads * shape.splits * VectorsOf(shape) * (kDim + 2) *
         sizeof(float);
}

}  // namespace

bool IsFastShape(const AttentionShape& shape) {
  return shape.head_dim == kDim && shape.value_dim == kDim && shape.query_rows * shape.group <= 16;
}

uint64_t AttentionScratchBytes(const AttentionShape& shape) {
  return PartsBytes(shape) + uint64_t{shape.max_rows} * shape.kv_heads * sizeof(uint32_t);
}

uint32_t ChooseSplits(uint32_t rows, uint32_t kv_heads, uint32_t pages, uint32_t sms) {
  // Two CTAs run on a multiprocessor at a time. Some 8 waves of them leave an eighth of one for the
  // uneven end; a CTA of fewer than 24 pages is mostly start and end.
  const uint32_t pairs = std::max(1u, rows * kv_heads);
  const uint32_t wanted = (8 * 2 * sms + pairs - 1) / pairs;
  const uint32_t least = (pages + kMaxPagesOfCta - 1) / kMaxPagesOfCta;
  return std::max(least, std::clamp(wanted, 1u, std::max(1u, pages / 24)));
}

LaunchError Attend(const AttentionShape& shape, const PageLayout& pages, const PageSet& set,
                   const void* queries, void* out, void* scratch, Stream stream) {
  if (!IsFastShape(shape)) return AttendGeneric(shape, pages, set, queries, out, stream);
  Params params;
  params.shape = shape;
  params.pages = pages;
  params.set = set;
  params.queries = static_cast<const __nv_bfloat16*>(queries);
  params.out = static_cast<__nv_bfloat16*>(out);
  params.parts = static_cast<float*>(scratch);
  params.tickets =
      reinterpret_cast<uint32_t*>(static_cast<std::byte*>(scratch) + PartsBytes(shape));
  params.scale_log2 = shape.scale * 1.4426950408889634f;
  return VectorsOf(shape) == 8 ? Launch<1>(params, stream) : Launch<2>(params, stream);
}

}  // namespace oasiskv::bench::step
