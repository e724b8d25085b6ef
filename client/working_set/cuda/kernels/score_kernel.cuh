// Scores of (row, KV head) pairs: a stream of summaries through every multiprocessor.
#pragma once

#include <cstdint>

#include "client/working_set/cuda/kernels/element.cuh"
#include "client/working_set/cuda/kernels/score_bounds.cuh"
#include "client/working_set/cuda/kernels/score_stream.cuh"

namespace oasiskv::gpu {

// Queries of the units that have tiles, by all threads of the CTA.
template <uint32_t kHeads>
__device__ void LoadQueries(const ScoreArgs& args, const Unit* units, uint32_t tiles, float* to) {
  const uint32_t each = args.query_dims / 2 * kHeads;
  for (uint32_t at = threadIdx.x; at < args.room * each; at += kScoreThreads) {
    const uint32_t u = at / each, i = at - u * each;
    if (u > 0 && units[u - 1].end == tiles) break;
    const Unit unit = units[u];
    const uint32_t j = i % (kLanes / 2), head = i / (kLanes / 2) % kHeads;
    const uint32_t dim = i / (kLanes / 2 * kHeads) * kLanes + 2 * j;
    float2 q = make_float2(0.0f, 0.0f);
    if (unit.pass * kHeads + head < args.group && dim < args.head_dim) {
      q = LoadQueryPair(
          args.queries, args.query_type,
          FirstQuery(args, unit.pair) + int64_t{unit.pass * kHeads + head} * args.head_dim + dim);
    }
    float* const row =
        to + u * QueryWords(args.query_dims, kHeads) + QueryPlace<kHeads>(head, dim - 2 * j);
    row[2 * j] = q.x;
    row[2 * j + 1] = q.y;
    row[kLanes + j] =
        __uint_as_float((Negative(q.x) ? 0 : 0xffffu) | (Negative(q.y) ? 0 : 0xffff0000u));
  }
}

// What becomes of the sums of one block. The whole warp comes here, `block` is this thread's; each
// block belongs to two threads, of which the even one writes.
template <uint32_t kHeads>
__device__ void Store(const ScoreArgs& args, const Unit& unit, uint32_t block,
                      const float (&sums)[kHeads]) {
  if (block >= unit.blocks || threadIdx.x % 2 != 0) return;
  if (args.folded) {  // one pass
    float score = sums[0];
#pragma unroll
    for (uint32_t h = 1; h < kHeads; ++h) {
      if (h < args.group) score = Combined(args.combine, score, sums[h]);
    }
    StoreToKeep(args.scores + uint64_t{unit.pair} * args.max_blocks + block,
                Finished(args.combine, score, args.group));
    return;
  }
  const uint32_t first = unit.pass * kHeads;
  float* const to = args.scores + (uint64_t{unit.pair} * args.group + first) * args.max_blocks;
#pragma unroll
  for (uint32_t h = 0; h < kHeads; ++h) {
    if (first + h < args.group) StoreToKeep(to + uint64_t{h} * args.max_blocks + block, sums[h]);
  }
}

// One warp's tiles of a batch: `ring` is its place in `shared`, already being fed.
template <Element kElement, uint32_t kHeads, bool kShrunk>
__device__ void ScoreTiles(const ScoreArgs& args, const std::byte* shared, uint32_t ring,
                           const Unit* units, const float* queries, uint32_t tiles,
                           Feeder<kElement>& feeder) {
  using Sums = Bounds<kElement, kHeads, kShrunk>;
  const uint32_t address = SharedAddress(shared) + ring, stage_bytes = args.together * kStageBytes;
  uint32_t at_stage = 0;
  for (TileWalk at(units, threadIdx.x / 32); at.number() < tiles; at.Next(kStreamWarps)) {
    at.Find();
    const Unit& unit = at.unit();
    const float* of_step = queries + (&unit - units) * QueryWords(args.query_dims, kHeads);
    Sums sums;
    sums.Clear();
    for (uint32_t step = 0; step < args.steps; step += args.together) {
      WaitOldest(args.stages);
      __syncwarp();
      for (uint32_t i = 0; i < args.together; ++i) {
        sums.Add(args, shared, ring + at_stage + i * kStageBytes, of_step);
        of_step += QueryWords(StageLayout<kElement>::kDims, kHeads);
      }
      __syncwarp();
      feeder.Feed(args, address + at_stage);
      at_stage += stage_bytes;
      if (at_stage == args.stages * stage_bytes) at_stage = 0;
    }
    float out[kHeads];
    sums.Fold(out);
    Store(args, unit, at.tile() * kTileBlocks + Sums::Block(), out);
  }
}

extern __shared__ __align__(16) std::byte score_shared[];

template <Element kElement, uint32_t kHeads, bool kShrunk>
__global__ void __launch_bounds__(kScoreThreads, kScoreCtas<kHeads>)
    ScoreKernel(const __grid_constant__ ScoreArgs args) {
  auto* const units = reinterpret_cast<Unit*>(score_shared + args.units_at);
  auto* const queries = reinterpret_cast<float*>(score_shared + args.queries_at);
  auto* const words = reinterpret_cast<uint32_t*>(score_shared + args.words_at);
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t stage_bytes = args.together * kStageBytes, ring = warp * args.stages * stage_bytes;

  ChunkList<kScoreThreads> list(args, words);
  for (uint32_t index = 0; index < list.count(); ++index) {
    Chunk chunk = list.Find(index);
    while (chunk.tiles > 0) {
      if (warp == 0) {
        const uint32_t found = FindUnits(args, chunk, units);
        if (threadIdx.x == 0) words[0] = found;
      }
      __syncthreads();
      const uint32_t tiles = words[0];
      Feeder<kElement> feeder(units, tiles, warp);
      for (uint32_t s = 0; s < args.stages; ++s) {
        feeder.Feed(args, SharedAddress(score_shared) + ring + s * stage_bytes);
      }
      LoadQueries<kHeads>(args, units, tiles, queries);
      __syncthreads();
      ScoreTiles<kElement, kHeads, kShrunk>(args, score_shared, ring, units, queries, tiles,
                                            feeder);
      __syncthreads();  // before the units and queries of the next batch
      chunk = {chunk.unit + args.room, 0, chunk.tiles - tiles};
    }
  }
}

// The kernels for summaries in E4M3 are compiled apart, in score_float8.cu.
using ScoreKernelPointer = void (*)(ScoreArgs);

// `heads`: query heads of a pass, as HeadsOfPass has them. `shrunk`: the box is.
ScoreKernelPointer ScoreKernelOfFloat8(uint32_t heads, bool shrunk);

}  // namespace oasiskv::gpu
