#include "client/working_set/cuda/kernels/element.cuh"
#include "client/working_set/cuda/kernels/entry.cuh"
#include "client/working_set/cuda/kernels/rank.cuh"
#include "client/working_set/cuda/kernels/rank.h"

namespace oasiskv::gpu {
namespace {

struct RankArgs {
  const float* scores;  // [row][kv_head][planes][max_blocks]
  const SlotState* state;
  int32_t* predicted;
  Rows rows;
  GroupCombine combine;
  bool full_local;
  bool folded;
  uint32_t planes, kv_heads, group, block_tokens, max_blocks, resident, ranked;
  uint32_t best_at, winners_at, histograms_at, words_at;  // in shared memory; keys begin at 0
};

// kNormalizedMax: the greatest sum of each query head, one warp per head.
__device__ void FindBest(const RankArgs& args, const float* sums, uint32_t blocks, float* best) {
  for (uint32_t h = threadIdx.x / 32; h < args.group; h += kRankWarps) {
    uint32_t most = OrderOf(-INFINITY);
    for (uint32_t b = threadIdx.x % 32; b < blocks; b += 32) {
      most = max(most, OrderOf(sums[uint64_t{h} * args.max_blocks + b]));  // NaN: 0
    }
    most = __reduce_max_sync(~0u, most);
    if (threadIdx.x % 32 == 0) best[h] = NumberOf(most);
  }
}

__device__ float ScoreOfSums(const RankArgs& args, const float* sums, const float* best) {
  const bool normalized = args.combine == GroupCombine::kNormalizedMax;
  float score = 0.0f;
  for (uint32_t h = 0; h < args.group; ++h) {
    const float sum = sums[uint64_t{h} * args.max_blocks];
    const float next = normalized ? BelowBest(sum, best[h]) : sum;
    score = h == 0 ? next : Combined(args.combine, score, next);
  }
  return Finished(args.combine, score, args.group);
}

// The next kRankThreads * kAtOnce scores of a CTA as keys; loads first, so that they are in flight
// together.
template <typename Score>
__device__ void MakeKeys(uint32_t blocks, const Score& score, uint32_t* keys, uint32_t* least,
                         uint32_t* greatest) {
  constexpr uint32_t kAtOnce = 8;
  for (uint32_t first = threadIdx.x; first < blocks; first += kAtOnce * kRankThreads) {
    float scores[kAtOnce];
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const uint32_t b = first + i * kRankThreads;
      scores[i] = b < blocks ? score(b) : 0.0f;
    }
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const uint32_t b = first + i * kRankThreads;
      if (b >= blocks) break;
      keys[b] = OrderOf(scores[i]);
      *least = min(*least, keys[b]);
      *greatest = max(*greatest, keys[b]);
    }
  }
}

extern __shared__ __align__(16) std::byte rank_shared[];

// A CTA a (row, KV head).
__global__ void __launch_bounds__(kRankThreads) RankKernel(const __grid_constant__ RankArgs args) {
  const uint32_t pair = blockIdx.x, row = pair / args.kv_heads;
  if (row >= ActiveRows(args.rows)) return;
  const uint32_t slot = args.rows.slots[row];
  const uint32_t blocks =
      Candidates(args.state[slot], args.full_local, args.block_tokens, args.max_blocks);
  const float* const scores = args.scores + uint64_t{pair} * args.planes * args.max_blocks;
  auto* const keys = reinterpret_cast<uint32_t*>(rank_shared);
  uint32_t least = ~0u, greatest = 0;
  // The kernel that makes the scores may still run; what is read above it does not change.
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if (args.folded) {
    MakeKeys(
        blocks, [&](uint32_t b) { return scores[b]; }, keys, &least, &greatest);
  } else {
    auto* const best = reinterpret_cast<float*>(rank_shared + args.best_at);
    if (args.combine == GroupCombine::kNormalizedMax) {
      FindBest(args, scores, blocks, best);
      __syncthreads();
    }
    MakeKeys(
        blocks, [&](uint32_t b) { return ScoreOfSums(args, scores + b, best); }, keys, &least,
        &greatest);
  }
  int32_t* const list =
      args.predicted + (uint64_t{slot} * args.kv_heads + pair % args.kv_heads) * args.resident;
  for (uint32_t i = args.ranked + threadIdx.x; i < args.resident; i += kRankThreads) list[i] = -1;
  RankKeys(keys, blocks, args.ranked, least, greatest, list,
           {reinterpret_cast<uint64_t*>(rank_shared + args.winners_at),
            reinterpret_cast<uint32_t*>(rank_shared + args.histograms_at),
            reinterpret_cast<uint32_t*>(rank_shared + args.words_at)});
}

}  // namespace

uint64_t ScoreBytes(const Shape& shape, uint32_t max_rows) {
  const uint64_t planes = ScoresAreFolded(shape) ? 1 : shape.group;
  return max_rows * planes * shape.kv_heads * shape.max_blocks * sizeof(float);
}

LaunchError RankScores(const Shape& shape, const LayerMemory& mem, const Rows& rows,
                       bool full_local, Stream stream) {
  const bool folded = ScoresAreFolded(shape);
  RankArgs args{};
  args.scores = mem.scores;
  args.state = mem.state;
  args.predicted = mem.predicted;
  args.rows = rows;
  args.combine = shape.combine;
  args.full_local = full_local;
  args.folded = folded;
  args.planes = folded ? 1 : shape.group;
  args.kv_heads = shape.kv_heads;
  args.group = shape.group;
  args.block_tokens = shape.block_tokens;
  args.max_blocks = shape.max_blocks;
  args.resident = shape.resident;
  args.ranked = shape.ranked != 0 ? shape.ranked : shape.resident;
  uint32_t bytes = 0;
  const auto take = [&bytes](uint32_t size) {
    const uint32_t place = bytes;
    bytes += (size + 15) / 16 * 16;
    return place;
  };
  take(shape.max_blocks * 4);
  args.best_at = take(folded ? 0 : shape.group * 4);
  args.winners_at = take(RankRoom(args.ranked) * 8);
  args.histograms_at = take(kRankPasses * kRankDigits * 4);
  args.words_at = take(kRankWords * 4);
  if (cudaFuncSetAttribute(RankKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(bytes)) != cudaSuccess) {
    cudaGetLastError();
    return "top-K: max_blocks or resident blocks too large for the shared memory of a "
           "multiprocessor (4 bytes a block, 8 a resident one)";
  }
  // The kernel's launch hides behind the scores' end.
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = rows.max_rows * shape.kv_heads;
  config.blockDim = kRankThreads;
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  const cudaError_t error = cudaLaunchKernelEx(&config, RankKernel, args);
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace oasiskv::gpu
