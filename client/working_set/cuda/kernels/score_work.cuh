// What the score kernel has to do and which part of it is a CTA's.
//
// Work is counted in tiles of 16 blocks: row by row, KV head by KV head, pass by pass. A unit is
// one pass of one (row, KV head). All tiles of a launch in that order are cut into even chunks,
// wherever rows and units end, and dealt to the CTAs in turn: none has more to read than another,
// and what all of them read at a time lies close together.
#pragma once

#include <cstdint>

#include "client/working_set/cuda/kernels/entry.cuh"
#include "client/working_set/cuda/kernels/layout.h"
#include "client/working_set/cuda/kernels/warp.cuh"

namespace oasiskv::gpu {

inline constexpr uint32_t kTileBlocks = 16;  // blocks that a warp scores at a time

// Plain data of one launch.
struct ScoreArgs {
  const std::byte* summaries;
  int64_t slot_stride;
  const SlotState* state;
  Rows rows;
  const void* queries;
  int64_t row_stride;
  QueryType query_type;
  GroupCombine combine;
  bool full_local;  // a local block that is full is a candidate
  bool folded;      // `scores` has one score per block; otherwise the sum of each query head
  float* scores;    // [row][kv_head][folded ? 1 : group][max_blocks]
  uint32_t kv_heads, group, head_dim, summary_bytes, block_tokens, max_blocks;
  float near, far;
  uint32_t query_dims;                      // head_dim, rounded up to whole stages
  uint32_t steps;                           // stages of a tile
  uint32_t passes;                          // over a head's summaries, for a few query heads each
  uint32_t stages;                          // of a ring: 1 to 3
  uint32_t together;                        // steps of a tile that a stage holds
  uint32_t chunk_tiles;                     // of a chunk, about
  uint32_t room;                            // units whose queries fit shared memory, 1 to 32
  uint32_t units_at, queries_at, words_at;  // places in shared memory; the rings begin at 0
};

// One unit as the warps of a CTA see it. Tiles are numbered from 0 through a batch of units.
struct Unit {
  const std::byte* summaries;  // of the KV head
  uint32_t blocks;             // candidates
  uint32_t pair;               // row * kv_heads + KV head
  uint32_t pass;
  int32_t base;  // its first tile's number, below 0 where the chunk begins within the unit
  uint32_t end;  // the number after its last tile's here
};

__device__ inline uint32_t UnitsOfRow(const ScoreArgs& args) { return args.kv_heads * args.passes; }

__device__ inline uint32_t SlotBlocks(const ScoreArgs& args, uint32_t slot) {
  return Candidates(args.state[slot], args.full_local, args.block_tokens, args.max_blocks);
}
__device__ inline uint32_t RowBlocks(const ScoreArgs& args, uint32_t row) {
  return SlotBlocks(args, args.rows.slots[row]);
}
__device__ inline uint32_t TilesOf(uint32_t blocks) {
  return (blocks + kTileBlocks - 1) / kTileBlocks;
}

// A part of the work: `tiles` tiles, from tile `skip` of unit `unit` on.
struct Chunk {
  uint32_t unit, skip, tiles;
};

// The chunks of a CTA. Thread contract: all kThreads threads of the CTA call together.
template <uint32_t kThreads>
class ChunkList {
 public:
  static constexpr uint32_t kWords = kThreads / 32 + 2;

  // `words`: shared memory, kWords.
  __device__ ChunkList(const ScoreArgs& args, uint32_t* words) : args_(args), words_(words) {
    // A thread's rows are next to each other. Their slots are read beside the count, not after it.
    const uint32_t each = (args.rows.max_rows + kThreads - 1) / kThreads;
    first_ = threadIdx.x * each;
    const uint32_t last = min(args.rows.max_rows, first_ + each);
    const uint32_t rows = ActiveRows(args.rows);
    for (uint32_t r = first_; r < last; ++r) {
      const uint32_t slot = args.rows.slots[r];
      if (r < rows) mine_ += TilesOf(SlotBlocks(args, slot)) * UnitsOfRow(args);
    }
    const uint32_t upto = SumUpto(mine_);
    if (threadIdx.x % 32 == 31) words[threadIdx.x / 32] = upto;
    __syncthreads();
    before_ = upto - mine_;
    for (uint32_t w = 0; w < kThreads / 32; ++w) {
      if (w < threadIdx.x / 32) before_ += words[w];
      tiles_ += words[w];
    }
    count_ = max(1u, (tiles_ + gridDim.x * args.chunk_tiles / 2) / (gridDim.x * args.chunk_tiles));
  }
  __device__ uint32_t count() const { return count_; }

  __device__ Chunk Find(uint32_t index) {
    const uint64_t at = uint64_t{index} * gridDim.x + blockIdx.x;
    const uint64_t all = uint64_t{count_} * gridDim.x;
    const auto begin = static_cast<uint32_t>(tiles_ * at / all);
    const auto end = static_cast<uint32_t>(tiles_ * (at + 1) / all);
    uint32_t* const found = words_ + kThreads / 32;
    __syncthreads();                                    // the chunk before has been read
    if (before_ <= begin && begin - before_ < mine_) {  // one thread, if there is a tile at all
      const uint32_t units = UnitsOfRow(args_);
      uint32_t rest = begin - before_, r = first_, tiles = TilesOf(RowBlocks(args_, r));
      while (rest >= tiles * units) {
        rest -= tiles * units;
        tiles = TilesOf(RowBlocks(args_, ++r));
      }
      found[0] = r * units + rest / tiles;
      found[1] = rest % tiles;
    }
    __syncthreads();
    return {found[0], found[1], end - begin};
  }

 private:
  const ScoreArgs& args_;
  uint32_t* const words_;
  uint32_t first_, mine_ = 0, before_ = 0;  // this thread's rows and their tiles
  uint32_t tiles_ = 0, count_;
};

// Looks up the next `args.room` units of the chunk; returns how many of its tiles they have. Called
// by one whole warp.
__device__ inline uint32_t FindUnits(const ScoreArgs& args, const Chunk& chunk, Unit* units) {
  const uint32_t lane = threadIdx.x % 32, index = chunk.unit + lane;
  const uint32_t row = index / UnitsOfRow(args);
  Unit unit{};
  if (lane < args.room && row < ActiveRows(args.rows)) {
    const uint32_t in_row = index - row * UnitsOfRow(args), head = in_row / args.passes;
    const uint32_t slot = args.rows.slots[row];
    unit.summaries = args.summaries + slot * args.slot_stride +
                     uint64_t{head} * args.max_blocks * args.summary_bytes;
    unit.blocks = SlotBlocks(args, slot);
    unit.pair = row * args.kv_heads + head;
    unit.pass = in_row - head * args.passes;
  }
  const uint32_t skipped = lane == 0 ? chunk.skip : 0, tiles = TilesOf(unit.blocks) - skipped;
  const uint32_t upto = SumUpto(tiles);
  unit.base = static_cast<int32_t>(upto - tiles) - static_cast<int32_t>(skipped);
  unit.end = min(upto, chunk.tiles);
  if (lane < args.room) units[lane] = unit;
  return __shfl_sync(~0u, unit.end, 31);
}

// A warp's way through the tiles of a batch: every `warps`-th, in order.
class TileWalk {
 public:
  __device__ TileWalk(const Unit* units, uint32_t warp) : units_(units), tile_(warp) {}
  // Pre-condition of what follows: the batch has a tile of this number.
  __device__ void Find() {
    while (tile_ >= units_->end) ++units_;
  }
  __device__ uint32_t number() const { return tile_; }
  __device__ void Next(uint32_t warps) { tile_ += warps; }
  __device__ const Unit& unit() const { return *units_; }
  __device__ uint32_t tile() const {  // of the unit
    return static_cast<uint32_t>(static_cast<int32_t>(tile_) - units_->base);
  }

 private:
  const Unit* units_;
  uint32_t tile_;
};

}  // namespace oasiskv::gpu
