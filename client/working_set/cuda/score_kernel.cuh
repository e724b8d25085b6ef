// Score and top-K of (row, KV head) pairs in one kernel.
#pragma once

#include <cooperative_groups.h>

#include <cstdint>

#include "client/working_set/cuda/barrier.cuh"
#include "client/working_set/cuda/rank.cuh"
#include "client/working_set/cuda/score_bounds.cuh"
#include "client/working_set/cuda/score_stream.cuh"

namespace oasiskv::gpu {

template <uint32_t kHeads>
inline constexpr uint32_t kScoreThreads = kStreamWarps<kHeads> * 32 + kRankThreads;

// Of each CTA of a cluster. A unit of work is one round of one pair. Units and pairs use two sets
// of buffers in turn, so that stream warps go on with a pair while the one before is ranked.
struct ScoreBarriers {
  Barrier ready[2];  // a unit's queries are there; arrivals: one of each CTA of the cluster
  Barrier done[2];   // a unit is scored; arrivals: of each stream warp of the cluster
  Barrier bounds;    // kNormalizedMax: a pair's best sums are known; arrivals: likewise
};

// What one pair needs of a CTA's shared memory.
struct PairShared {
  uint32_t* keys;    // [max_blocks]: a running score, then in the first CTA its OrderOf
  uint32_t* ranked;  // the first CTA's keys
  float* bounds;     // [group][max_blocks], args.stored
  uint32_t* best;    // [group]: OrderOf a head's greatest sum
};

// A head's summaries scored by one CTA of `args.cluster`.
template <Element kElement, uint32_t kHeads, bool kShrunk>
class HeadScorer {
 public:
  using Sums = Bounds<kElement, kHeads, kShrunk>;

  __device__ HeadScorer(const ScoreArgs& args, const PairShared& shared, uint32_t blocks)
      : args_(args), shared_(shared), blocks_(blocks) {}

  // What a round does with the sums of one block; the whole warp comes here, `block` is this
  // thread's, each block belongs to two threads.
  __device__ void Take(uint32_t round, uint32_t block, const float (&sums)[kHeads]) {
    const bool normalized = args_.combine == GroupCombine::kNormalizedMax;
    const uint32_t pass = round < args_.passes ? round : round - args_.passes;
    const uint32_t first = pass * kHeads;
    const uint32_t heads = min(kHeads, args_.group - first);
    const bool mine = block < blocks_;
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
    if (threadIdx.x % 32 >= kTileBlocks || block >= blocks_) return;
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
      if (threadIdx.x % 32 < args_.cluster) {  // one lane for each CTA
        atomicMax(
            cooperative_groups::this_cluster().map_shared_rank(shared_.best, threadIdx.x % 32) +
                first + h,
            best);
      }
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
  const PairShared shared_;
  const uint32_t blocks_;
};

// Queries of one unit, by the ranking warps.
template <uint32_t kHeads>
__device__ void LoadQueries(const ScoreArgs& args, uint32_t pair, uint32_t pass, bool picks,
                            float* to, uint32_t tid) {
  const int64_t first = FirstQuery(args, pair) + int64_t{pass} * kHeads * args.head_dim;
  const uint32_t heads = min(kHeads, args.group - pass * kHeads);
  const uint32_t count = args.query_dims / 2 * kHeads;
  const auto value = [picks](float q) { return picks && q == -INFINITY ? NAN : q; };
#pragma unroll 2
  for (uint32_t i = tid; i < count; i += kRankThreads) {
    const uint32_t j = i % (kLanes / 2), head = i / (kLanes / 2) % kHeads;
    const uint32_t dim = i / (kLanes / 2 * kHeads) * kLanes + 2 * j;
    float2 q = make_float2(0.0f, 0.0f);
    if (head < heads && dim < args.head_dim) {
      q = LoadQueryPair(args.queries, args.query_type, first + int64_t{head} * args.head_dim + dim);
    }
    float* const row = to + QueryPlace<kHeads>(head, dim - 2 * j);
    row[2 * j] = value(q.x);
    row[2 * j + 1] = value(q.y);
    row[kLanes + j] = __uint_as_float((q.x < 0.0f ? 0 : 0xffffu) | (q.y < 0.0f ? 0 : 0xffff0000u));
  }
}

// One CTA's part in ScoreKernel.
template <Element kElement, uint32_t kHeads, bool kShrunk>
class ScoreCta {
 public:
  using Scorer = HeadScorer<kElement, kHeads, kShrunk>;
  using Sums = typename Scorer::Sums;
  static constexpr uint32_t kWarps = kStreamWarps<kHeads>;

  __device__ ScoreCta(const ScoreArgs& args, std::byte* shared)
      : args_(args),
        shared_(shared),
        rank_(blockIdx.x % args.cluster),
        barriers_(reinterpret_cast<ScoreBarriers*>(shared + args.barriers_at)) {
    const uint32_t clusters = gridDim.x / args.cluster, cluster = blockIdx.x / args.cluster;
    const uint32_t pairs = min(*args.rows.count, args.rows.max_rows) * args.kv_heads;
    auto* const table = reinterpret_cast<HeadWork*>(shared + args.works_at);
    list_ = {cluster, clusters, pairs > cluster ? (pairs - cluster - 1) / clusters + 1 : 0, table};
    if (threadIdx.x < PairList::kTable && threadIdx.x < list_.count) {
      table[threadIdx.x] = ReadWork(args, list_.Pair(threadIdx.x));
    }
    if (threadIdx.x == kScoreThreads<kHeads> - 1) {
      const uint32_t warps = args.cluster * kWarps;
      for (uint32_t i = 0; i < 2; ++i) {
        InitBarrier(&barriers_->ready[i], args.cluster);
        InitBarrier(&barriers_->done[i], warps);
      }
      InitBarrier(&barriers_->bounds, warps);
      FenceBarriers();
    }
    SyncAll();
  }

  // The barrier of all threads of the cluster, before and after everything: no CTA is written to
  // before it has begun or after it has ended.
  __device__ void SyncAll() const {
    if (args_.cluster == 1) {
      __syncthreads();
    } else {
      cooperative_groups::this_cluster().sync();
    }
  }

  // Stream warps: score tile after tile.
  __device__ void Stream() {
    const uint32_t warp = threadIdx.x / 32, warps = args_.cluster * kWarps;
    const uint32_t ring = warp * args_.stages * kStageBytes;
    const uint32_t ring_address = SharedAddress(shared_) + ring;
    Cursor at(args_, list_, rank_ * kWarps + warp, warps);
    Feeder<kElement> feeder(args_, list_, rank_ * kWarps + warp, warps);
    for (uint32_t s = 0; s < args_.stages; ++s) {
      feeder.Feed(args_, list_, ring_address + s * kStageBytes);
    }
    uint32_t stage = 0, unit = 0;
    for (; at.PairsLeft(list_); at.NextPair(args_, list_)) {
      for (uint32_t round = 0; round < args_.rounds; ++round, ++unit) {
        const uint32_t pass = round < args_.passes ? round : round - args_.passes;
        const float* const queries = Queries(unit);
        WaitReady(unit);
        at.NextRound();
        for (; at.TilesLeft(); at.NextTile()) {
          Sums sums;
          sums.Clear();
          for (uint32_t step = 0; step < args_.steps; ++step) {
            WaitOldest(args_.stages);
            __syncwarp();
            sums.Add(args_, shared_, ring + stage * kStageBytes,
                     queries + QueryWords(step * StageLayout<kElement>::kDims, kHeads));
            __syncwarp();
            feeder.Feed(args_, list_, ring_address + stage * kStageBytes);
            stage = stage + 1 == args_.stages ? 0 : stage + 1;
          }
          float out[kHeads];
          sums.Fold(out);
          const uint32_t block = at.tile() * kTileBlocks + Sums::Block();
          if (block < at.work().blocks) Correct(at, block, pass, out);
          Scorer(args_, SharedOf(at.index()), at.work().blocks).Take(round, block, out);
        }
        if (round + 1 == args_.passes && args_.combine == GroupCombine::kNormalizedMax) {
          PassBounds(at.index());
          if (args_.stored) {
            Scorer scorer(args_, SharedOf(at.index()), at.work().blocks);
            for (at.NextRound(); at.TilesLeft(); at.NextTile()) scorer.TakeStored(at.tile());
          }
        }
        ArriveDone(unit);
      }
    }
  }

  // The other warps: bring queries two units ahead, rank what is scored.
  __device__ void Rank() {
    const uint32_t tid = threadIdx.x - kWarps * 32;
    const RankScratch scratch = {reinterpret_cast<uint64_t*>(shared_ + args_.winners_at),
                                 reinterpret_cast<uint32_t*>(shared_ + args_.histogram_at),
                                 reinterpret_cast<uint32_t*>(shared_ + args_.words_at)};
    const uint32_t units = list_.count * args_.rounds;
    Prepare(0, units, tid);
    Prepare(1, units, tid);
    for (uint32_t unit = 0; unit < units; ++unit) {
      WaitDone(unit);
      // With a third set of keys nothing that ranking reads is written by the unit that begins.
      const bool early = args_.key_sides > 2;
      if (early) Prepare(unit + 2, units, tid);
      const uint32_t index = unit / args_.rounds;
      if (rank_ == 0 && unit + 1 == (index + 1) * args_.rounds) {
        const HeadWork work = list_.Work(args_, index);
        const uint64_t list =
            uint64_t{work.slot} * args_.kv_heads + list_.Pair(index) % args_.kv_heads;
        RankKeys(SharedOf(index).keys, work.blocks, args_.resident,
                 args_.predicted + list * args_.resident, scratch, tid);
      }
      if (!early) Prepare(unit + 2, units, tid);
    }
  }

 private:
  __device__ float* Queries(uint32_t unit) const {
    return reinterpret_cast<float*>(shared_ + args_.queries_at) +
           unit % 2 * QueryWords(args_.query_dims, kHeads);
  }
  __device__ PairShared SharedOf(uint32_t index) const {
    const uint32_t side = index % 2;
    PairShared out;
    out.keys = reinterpret_cast<uint32_t*>(shared_ + args_.keys_at) +
               index % args_.key_sides * args_.max_blocks;
    out.ranked = args_.cluster == 1
                     ? out.keys
                     : cooperative_groups::this_cluster().map_shared_rank(out.keys, 0);
    out.bounds =
        reinterpret_cast<float*>(shared_ + args_.bounds_at) + side * args_.group * args_.max_blocks;
    out.best = reinterpret_cast<uint32_t*>(shared_ + args_.best_at) + side * args_.group;
    return out;
  }

  // Each is called by whole warps. A CTA that is alone needs no fence beyond itself, which would
  // wait for what the ranking warps write to HBM.
  __device__ void ArriveReady(uint32_t unit, uint32_t tid) const {
    RankSync();
    if (tid < args_.cluster) ArriveOf(&barriers_->ready[unit % 2], tid);
  }
  __device__ void WaitReady(uint32_t unit) const { WaitOf(&barriers_->ready[unit % 2], unit / 2); }
  __device__ void ArriveDone(uint32_t unit) const {
    __syncwarp();
    const uint32_t lane = threadIdx.x % 32;
    if (lane < args_.cluster) ArriveOf(&barriers_->done[unit % 2], lane);
  }
  __device__ void WaitDone(uint32_t unit) const { WaitOf(&barriers_->done[unit % 2], unit / 2); }
  __device__ void PassBounds(uint32_t index) const {
    __syncwarp();
    const uint32_t lane = threadIdx.x % 32;
    if (lane < args_.cluster) ArriveOf(&barriers_->bounds, lane);
    WaitOf(&barriers_->bounds, index);
  }
  __device__ void ArriveOf(Barrier* barrier, uint32_t rank) const {
    if (args_.cluster == 1) {
      ArriveInCta(barrier);
    } else {
      Arrive(barrier, rank);
    }
  }
  __device__ void WaitOf(Barrier* barrier, uint32_t use) const {
    if (args_.cluster == 1) {
      WaitInCta(barrier, use);
    } else {
      Wait(barrier, use);
    }
  }

  __device__ void Prepare(uint32_t unit, uint32_t units, uint32_t tid) {
    if (unit >= units) return;
    const uint32_t index = unit / args_.rounds, round = unit - index * args_.rounds;
    const uint32_t pass = round < args_.passes ? round : round - args_.passes;
    LoadQueries<kHeads>(args_, list_.Pair(index), pass, Sums::kPicks, Queries(unit), tid);
    if (round == 0 && args_.combine == GroupCombine::kNormalizedMax) {
      uint32_t* const best = SharedOf(index).best;
      for (uint32_t h = tid; h < args_.group; h += kRankThreads) best[h] = OrderOf(-INFINITY);
    }
    ArriveReady(unit, tid);
  }

  // Sums that the fast way does not give.
  __device__ void Correct(const Cursor& at, uint32_t block, uint32_t pass,
                          float (&out)[kHeads]) const {
#pragma unroll
    for (uint32_t h = 0; h < kHeads; ++h) {
      const uint32_t head = pass * kHeads + h;
      if (out[h] == out[h] || head >= args_.group) continue;
      out[h] = Sums::Exact(args_, at.work().summaries, block, list_.Pair(at.index()), head);
    }
  }

  const ScoreArgs& args_;
  std::byte* const shared_;
  const uint32_t rank_;  // in the cluster; the first ranks for all
  ScoreBarriers* const barriers_;
  PairList list_;
};

extern __shared__ __align__(16) std::byte score_shared[];

// A persistent grid: every cluster takes pair after pair.
template <Element kElement, uint32_t kHeads, bool kShrunk>
__global__ void __launch_bounds__(kScoreThreads<kHeads>, 1)
    ScoreKernel(const __grid_constant__ ScoreArgs args) {
  ScoreCta<kElement, kHeads, kShrunk> cta(args, score_shared);
  if (threadIdx.x < kStreamWarps<kHeads> * 32) {
    cta.Stream();
  } else {
    cta.Rank();
  }
  cta.SyncAll();
}

}  // namespace oasiskv::gpu
