#include "client/working_set/cuda/kernels/entry.cuh"
#include "tools/bench/rig/hbm_reader.h"

namespace oasiskv::bench {
namespace {

constexpr uint32_t kThreads = 512, kLoads = 8;
static_assert(kReadChunk == kThreads * kLoads * sizeof(uint4));

// Each order with the load that is fastest for it.
template <ReadOrder kOrder>
__device__ inline uint4 Load(const uint4* from) {
  if constexpr (kOrder == ReadOrder::kChunks) return __ldcs(from);
  uint4 r;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "l"(from));
  return r;
}

template <ReadOrder kOrder>
__global__ void __launch_bounds__(kThreads)
    ReadKernel(const uint4* from, uint64_t words, uint32_t* sink) {
  const uint64_t threads = uint64_t{gridDim.x} * kThreads;
  const uint64_t cta_words = kOrder == ReadOrder::kChunks ? kThreads * kLoads : kThreads;
  const uint64_t apart = kOrder == ReadOrder::kChunks ? kThreads : threads;
  uint32_t x = 0;
  for (uint64_t at = blockIdx.x * cta_words + threadIdx.x; at < words; at += kLoads * threads) {
    uint4 r[kLoads];
    if (at + (kLoads - 1) * apart < words) {
#pragma unroll
      for (uint32_t j = 0; j < kLoads; ++j) r[j] = Load<kOrder>(from + at + j * apart);
    } else {
#pragma unroll
      for (uint32_t j = 0; j < kLoads; ++j) {
        const uint64_t i = at + j * apart;
        r[j] = i < words ? Load<kOrder>(from + i) : make_uint4(0, 0, 0, 0);
      }
    }
#pragma unroll
    for (uint32_t j = 0; j < kLoads; ++j) x ^= r[j].x ^ r[j].y ^ r[j].z ^ r[j].w;
  }
  if (x == 0x5eed1e55u) *sink = x;  // keeps the loads
}

}  // namespace

gpu::LaunchError ReadHbm(const void* from, uint64_t bytes, uint32_t* sink, uint32_t ctas,
                         ReadOrder order, gpu::Stream stream) {
  const auto kernel = order == ReadOrder::kChunks ? ReadKernel<ReadOrder::kChunks>
                                                  : ReadKernel<ReadOrder::kSideBySide>;
  kernel<<<ctas, kThreads, 0, stream>>>(static_cast<const uint4*>(from), bytes / 16, sink);
  return gpu::Launched();
}

}  // namespace oasiskv::bench
