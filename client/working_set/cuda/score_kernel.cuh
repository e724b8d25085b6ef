// Score and top-K of (row, KV head) pairs in one kernel.
#pragma once

#include <cooperative_groups.h>

#include <cstdint>

#include "client/working_set/cuda/rank.cuh"
#include "client/working_set/cuda/score_bounds.cuh"
#include "client/working_set/cuda/score_stream.cuh"

namespace oasiskv::gpu {

inline constexpr uint32_t kScoreThreads = kStreamWarps * 32;
static_assert(kScoreThreads == kRankThreads);

// A CTA's shared memory, and that of the first CTA of its cluster, which ranks.
struct ScoreShared {
  std::byte* base;
  float* queries;    // QueryPlace
  uint32_t* keys;    // [max_blocks]: a running score, then its OrderOf
  uint32_t* ranked;  // the first CTA's keys
  float* bounds;     // [group][max_blocks], args.stored
  uint32_t* best;    // [group]: OrderOf a head's greatest sum
  RankScratch scratch;
};

// A head's summaries scored by one CTA of `args.cluster`.
template <Element kElement, uint32_t kHeads, bool kShrunk>
class HeadScorer {
 public:
  using Sums = Bounds<kElement, kHeads, kShrunk>;

  __device__ HeadScorer(const ScoreArgs& args, const ScoreShared& shared, const HeadWork& work)
      : args_(args), shared_(shared), work_(work) {}

  // What a round does with the sums of one block; the whole warp comes here, `block` is this
  // thread's, each block belongs to two threads.
  __device__ void Take(uint32_t round, uint32_t block, const float (&sums)[kHeads]) {
    const bool normalized = args_.combine == GroupCombine::kNormalizedMax;
    const uint32_t pass = round < args_.passes ? round : round - args_.passes;
    const uint32_t first = pass * kHeads;
    const uint32_t heads = min(kHeads, args_.group - first);
    const bool mine = block < work_.blocks;
    if (normalized && round < args_.passes) return TakeBounds(first, heads, block, mine, sums);
    if (!mine || threadIdx.x % 2 != 0) return;
    float score = first > 0 ? __uint_as_float(shared_.keys[block]) : 0.0f;
#pragma unroll
    for (uint32_t h = 0; h < kHeads; ++h) {
      if (h >= heads) break;
      const float next = normalized ? Below(sums[h], first + h) : sums[h];
      score = first + h == 0 ? next : Combined(score, next);
    }
    if (first + heads < args_.group) {
      shared_.keys[block] = __float_as_uint(score);
    } else {
      Finish(block, score);
    }
  }

  // kNormalizedMax from stored sums, for the 16 blocks of a tile.
  __device__ void TakeStored(uint32_t tile) {
    const uint32_t block = tile * kTileBlocks + threadIdx.x % 32;
    if (threadIdx.x % 32 >= kTileBlocks || block >= work_.blocks) return;
    float score = 0.0f;
    for (uint32_t h = 0; h < args_.group; ++h) {
      const float below = Below(shared_.bounds[h * args_.max_blocks + block], h);
      score = h == 0 ? below : Combined(score, below);
    }
    Finish(block, score);
  }

 private:
  __device__ void TakeBounds(uint32_t first, uint32_t heads, uint32_t block, bool mine,
                             const float (&sums)[kHeads]) {
#pragma unroll
    for (uint32_t h = 0; h < kHeads; ++h) {
      if (h >= heads) break;
      const uint32_t best = __reduce_max_sync(~0u, mine ? OrderOf(sums[h]) : 0);  // NaN: 0
      if (threadIdx.x % 32 == 0) atomicMax(&shared_.best[first + h], best);
      if (args_.stored && mine && threadIdx.x % 2 == 0) {
        shared_.bounds[(first + h) * args_.max_blocks + block] = sums[h];
      }
    }
  }
  __device__ float Below(float sum, uint32_t head) const {
    const float best = NumberOf(shared_.best[head]);
    return sum == best ? 0.0f : __fsub_rn(sum, best);
  }
  __device__ float Combined(float so_far, float next) const {
    if (args_.combine == GroupCombine::kMean || args_.combine == GroupCombine::kSum) {
      return __fadd_rn(so_far, next);
    }
    return next > so_far || next != next ? next : so_far;  // a NaN stays
  }
  __device__ void Finish(uint32_t block, float score) {
    if (args_.combine == GroupCombine::kMean) {
      score = __fdiv_rn(score, static_cast<float>(args_.group));
    }
    shared_.ranked[block] = OrderOf(score);
  }

  const ScoreArgs& args_;
  const ScoreShared& shared_;
  const HeadWork work_;
};

template <uint32_t kHeads>
__device__ void LoadQueries(const ScoreArgs& args, uint32_t pair, uint32_t pass, float* to) {
  const uint32_t row = pair / args.kv_heads;
  const int64_t first =
      row * args.row_stride +
      (int64_t{pair - row * args.kv_heads} * args.group + pass * kHeads) * args.head_dim;
  const uint32_t heads = min(kHeads, args.group - pass * kHeads);
  const uint32_t chunks = args.query_dims / kLanes;
  for (uint32_t i = threadIdx.x; i < chunks * kHeads * kLanes; i += kScoreThreads) {
    const uint32_t lane = i % kLanes, head = i / kLanes % kHeads;
    const uint32_t dim = i / (kLanes * kHeads) * kLanes + lane;
    const bool there = head < heads && dim < args.head_dim;
    to[i] = there ? LoadQuery(args.queries, args.query_type,
                              first + int64_t{head} * args.head_dim + dim)
                  : 0.0f;
  }
}

__device__ inline void ClusterSync(uint32_t cluster) {
  if (cluster == 1) {
    __syncthreads();
  } else {
    cooperative_groups::this_cluster().sync();
  }
}

// kNormalizedMax: every CTA of the cluster gets the greatest of all.
__device__ inline void ShareBest(const ScoreArgs& args, uint32_t* best) {
  ClusterSync(args.cluster);
  if (args.cluster == 1) return;
  const auto cluster = cooperative_groups::this_cluster();
  for (uint32_t i = threadIdx.x; i < args.group * args.cluster; i += kScoreThreads) {
    const uint32_t head = i / args.cluster;
    atomicMax(cluster.map_shared_rank(best, i % args.cluster) + head, best[head]);
  }
  cluster.sync();
}

extern __shared__ __align__(16) std::byte score_shared[];

// A persistent grid: every cluster takes pair after pair.
template <Element kElement, uint32_t kHeads, bool kShrunk>
__global__ void __launch_bounds__(kScoreThreads, 2)
    ScoreKernel(const __grid_constant__ ScoreArgs args) {
  using Scorer = HeadScorer<kElement, kHeads, kShrunk>;
  using Sums = typename Scorer::Sums;
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t clusters = gridDim.x / args.cluster, cluster = blockIdx.x / args.cluster;
  const uint32_t rank = blockIdx.x - cluster * args.cluster;
  const uint32_t pairs = min(*args.rows.count, args.rows.max_rows) * args.kv_heads;
  const Share share{pairs, clusters, rank * kStreamWarps + warp, args.cluster * kStreamWarps};

  ScoreShared shared;
  shared.base = score_shared;
  shared.queries = reinterpret_cast<float*>(score_shared + args.queries_at);
  shared.keys = reinterpret_cast<uint32_t*>(score_shared + args.keys_at);
  shared.bounds = reinterpret_cast<float*>(score_shared + args.bounds_at);
  shared.best = reinterpret_cast<uint32_t*>(score_shared + args.best_at);
  shared.scratch = {reinterpret_cast<uint64_t*>(score_shared + args.winners_at),
                    reinterpret_cast<uint32_t*>(score_shared + args.histogram_at),
                    reinterpret_cast<uint32_t*>(score_shared + args.words_at)};
  shared.ranked = shared.keys;

  const uint32_t ring = warp * args.stages * kStageBytes;
  const uint32_t ring_address =
      static_cast<uint32_t>(__cvta_generic_to_shared(score_shared)) + ring;
  Feeder<kElement> feeder(args, share, cluster);
  for (uint32_t s = 0; s < args.stages; ++s) feeder.Feed(args, ring_address + s * kStageBytes);
  if (args.cluster > 1) {
    shared.ranked = cooperative_groups::this_cluster().map_shared_rank(shared.keys, 0);
    ClusterSync(args.cluster);  // before the first write into another CTA, it has begun
  }

  uint32_t stage = 0;
  for (uint32_t pair = cluster; pair < pairs; pair += clusters) {
    const HeadWork work = WorkOf(args, pair);
    Scorer scorer(args, shared, work);
    for (uint32_t round = 0; round < args.rounds; ++round) {
      if (round > 0) __syncthreads();  // all are done with the queries
      const uint32_t pass = round < args.passes ? round : round - args.passes;
      LoadQueries<kHeads>(args, pair, pass, shared.queries);
      if (round == 0 && args.combine == GroupCombine::kNormalizedMax) {
        for (uint32_t h = threadIdx.x; h < args.group; h += kScoreThreads) {
          shared.best[h] = OrderOf(-INFINITY);
        }
      }
      __syncthreads();
      for (uint32_t tile = share.first_tile; tile * kTileBlocks < work.blocks;
           tile += share.tile_stride) {
        Sums sums;
        sums.Clear();
        for (uint32_t step = 0; step < args.steps; ++step) {
          WaitOldest(args.stages);
          __syncwarp();
          sums.Add(args, score_shared, ring + stage * kStageBytes,
                   shared.queries + step * StageLayout<kElement>::kDims * kHeads);
          __syncwarp();
          feeder.Feed(args, ring_address + stage * kStageBytes);
          stage = stage + 1 == args.stages ? 0 : stage + 1;
        }
        float out[kHeads];
        sums.Fold(out);
        const uint32_t block = tile * kTileBlocks + Sums::Block();
        if (block < work.blocks) {
#pragma unroll
          for (uint32_t h = 0; h < kHeads; ++h) {
            if (out[h] != out[h] && pass * kHeads + h < args.group) {
              out[h] = Sums::Exact(args, work.summaries + uint64_t{block} * args.summary_bytes,
                                   shared.queries, h);
            }
          }
        }
        scorer.Take(round, block, out);
      }
      if (round + 1 == args.passes && args.combine == GroupCombine::kNormalizedMax) {
        ShareBest(args, shared.best);
      }
    }
    if (args.stored) {
      for (uint32_t tile = share.first_tile; tile * kTileBlocks < work.blocks;
           tile += share.tile_stride) {
        scorer.TakeStored(tile);
      }
    }
    ClusterSync(args.cluster);
    if (rank == 0) {
      const uint64_t list = uint64_t{work.slot} * args.kv_heads + pair % args.kv_heads;
      RankKeys(shared.keys, work.blocks, args.resident, args.predicted + list * args.resident,
               shared.scratch);
    }
    ClusterSync(args.cluster);
  }
}

}  // namespace oasiskv::gpu
