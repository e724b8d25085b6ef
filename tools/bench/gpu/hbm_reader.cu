#include "tools/bench/gpu/hbm_reader.h"

namespace oasiskv::bench {
namespace {

constexpr uint32_t kThreads = 512, kLoads = 8;
constexpr uint64_t kCtaBytes = uint64_t{kThreads} * kLoads * sizeof(uint4);

__global__ void __launch_bounds__(kThreads) ReadKernel(const uint4* from, uint64_t* sink) {
  const uint4* at = from + uint64_t{blockIdx.x} * kThreads * kLoads + threadIdx.x;
  uint4 v[kLoads];
#pragma unroll
  for (uint32_t i = 0; i < kLoads; ++i) v[i] = __ldcs(at + i * kThreads);
  uint32_t sum = 0;
#pragma unroll
  for (uint32_t i = 0; i < kLoads; ++i) sum += v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
  if (sum == 0x9E3779B9u) *sink = sum;
}

}  // namespace

const char* ReadHbm(const std::byte* from, uint64_t bytes, uint64_t* sink, CUstream_st* stream) {
  ReadKernel<<<static_cast<uint32_t>(bytes / kCtaBytes), kThreads, 0, stream>>>(
      reinterpret_cast<const uint4*>(from), sink);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace oasiskv::bench
