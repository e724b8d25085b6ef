#include <algorithm>

#include "client/working_set/cuda/kernels/kernels.h"
#include "client/working_set/cuda/kernels/rank.h"
#include "client/working_set/cuda/kernels/score_kernel.cuh"
#include "client/working_set/cuda/kernels/score_tuning.h"

namespace oasiskv::gpu {
namespace {

constexpr uint32_t kFewHeads = 4, kManyHeads = 8;           // HeadsOfPass
constexpr uint32_t kMostTogether = 2;                       // steps of a stage
constexpr uint32_t kMostStages = 3, kMostUnits = 32;        // a ring's; a batch's
constexpr uint32_t kMostGroup = 1024, kMostBlocks = 65536;  // sizes below fit 32 bits
constexpr uint32_t kChunkTiles = 6 * kStreamWarps;
constexpr uint64_t kMostTiles = uint64_t{1} << 31;

template <uint32_t kHeads, bool kShrunk>
ScoreKernelPointer KernelOf(Element element) {
  switch (element) {
    case Element::kFloat16:
      return ScoreKernel<Element::kFloat16, kHeads, kShrunk>;
    case Element::kBFloat16:
      return ScoreKernel<Element::kBFloat16, kHeads, kShrunk>;
    case Element::kFloat32:
      return ScoreKernel<Element::kFloat32, kHeads, kShrunk>;
    case Element::kFloat8:  // ScoreKernelOfFloat8
      break;
  }
  return nullptr;
}

// What a launch needs to know of the device.
struct Device {
  uint32_t processors = 0;
  uint32_t shared_of_processor = 0;
  uint32_t shared_kept = 0;  // by the system, of each CTA
  cudaError_t Read() {
    int device = 0;
    cudaError_t error = cudaGetDevice(&device);
    const auto read = [&](cudaDeviceAttr what, uint32_t* into) {
      int value = 0;
      if (error == cudaSuccess) error = cudaDeviceGetAttribute(&value, what, device);
      *into = static_cast<uint32_t>(value);
    };
    read(cudaDevAttrMultiProcessorCount, &processors);
    read(cudaDevAttrMaxSharedMemoryPerMultiprocessor, &shared_of_processor);
    read(cudaDevAttrReservedSharedMemoryPerBlock, &shared_kept);
    return error;
  }
};

uint32_t CtasOf(uint32_t heads) {
  return heads == kFewHeads ? kScoreCtas<kFewHeads> : kScoreCtas<kManyHeads>;
}

// Places everything behind the rings; returns the bytes in all.
uint32_t Place(ScoreArgs* args, uint32_t heads) {
  uint32_t at = kStreamWarps * args->stages * args->together * kStageBytes;
  const auto take = [&at](uint32_t bytes) {
    const uint32_t place = at;
    at += (bytes + 15) / 16 * 16;
    return place;
  };
  args->words_at = take(ChunkList<kScoreThreads>::kWords * 4);
  args->units_at = take(args->room * sizeof(Unit));
  args->queries_at = take(args->room * QueryWords(args->query_dims, heads) * 4);
  return at;
}

// Stages as large as `together`, rings as deep as `stages`, then room for as many units as fit.
// Returns the bytes; 0: too large.
uint32_t Fit(ScoreArgs* args, uint32_t heads, uint32_t together, uint32_t stages, uint32_t limit) {
  for (args->together = together; args->together > 0; --args->together) {
    if (args->steps % args->together != 0) continue;
    for (args->stages = stages; args->stages > 0; --args->stages) {
      args->room = 1;
      if (Place(args, heads) > limit) continue;
      const uint32_t each = QueryWords(args->query_dims, heads) * 4 + sizeof(Unit);
      args->room = std::min(kMostUnits, 1 + (limit - Place(args, heads)) / (each + 16));
      return Place(args, heads);
    }
  }
  return 0;
}

LaunchError CheckShape(const Shape& shape, const Rows& rows, uint32_t passes) {
  if (shape.head_dim == 0 || shape.head_dim % 8 != 0) {
    return "score: head_dim is not a multiple of 8";
  }
  if (shape.summaries == SummaryType::kFloat8 && shape.head_dim % 16 != 0) {
    return "score: head_dim is not a multiple of 16, which summaries in 8 bits need";
  }
  if (shape.group == 0 || shape.resident == 0) return "score: group or resident blocks are 0";
  if (shape.group > kMostGroup || shape.max_blocks > kMostBlocks) {
    return "score: more than 1024 query heads of a KV head, or more than 65536 blocks";
  }
  const uint64_t tiles = (shape.max_blocks + kTileBlocks - 1) / kTileBlocks;
  if (tiles * rows.max_rows * shape.kv_heads * passes >= kMostTiles) {
    return "score: max_rows times KV heads times max_blocks is too large for one launch";
  }
  return nullptr;
}

}  // namespace

LaunchError ScoreTopKTuned(const Shape& shape, const LayerMemory& mem, const Rows& rows,
                           const void* queries, QueryType type, int64_t row_stride,
                           const ScoreTuning& tuning, Stream stream, bool full_local) {
  const uint32_t heads = HeadsOfPass(shape);
  const uint32_t passes = (shape.group + heads - 1) / heads;
  if (const LaunchError error = CheckShape(shape, rows, passes); error != nullptr) return error;
  if (rows.max_rows == 0) return nullptr;
  if (mem.scores == nullptr) return "score: LayerMemory.scores is null; ScoreBytes are needed";
  Device device;
  if (const cudaError_t error = device.Read(); error != cudaSuccess) {
    return cudaGetErrorString(error);
  }
  if (tuning.processors != 0) device.processors = std::min(device.processors, tuning.processors);
  const uint32_t dims = kSegment / (shape.summary_bytes / 2 / shape.head_dim);

  ScoreArgs args{};
  args.summaries = mem.summaries;
  args.slot_stride = mem.summaries_slot_stride;
  args.state = mem.state;
  args.rows = rows;
  args.queries = queries;
  args.row_stride = row_stride;
  args.query_type = type;
  args.combine = shape.combine;
  args.full_local = full_local;
  args.folded = ScoresAreFolded(shape);
  args.scores = mem.scores;
  args.kv_heads = shape.kv_heads;
  args.group = shape.group;
  args.head_dim = shape.head_dim;
  args.summary_bytes = shape.summary_bytes;
  args.block_tokens = shape.block_tokens;
  args.max_blocks = shape.max_blocks;
  args.near = shape.near;
  args.far = shape.far;
  args.steps = (shape.head_dim + dims - 1) / dims;
  args.query_dims = args.steps * dims;
  args.passes = passes;
  args.chunk_tiles = tuning.chunk != 0 ? tuning.chunk : kChunkTiles;
  const uint32_t together = tuning.together != 0 ? tuning.together : kMostTogether;
  const uint32_t stages = tuning.stages != 0 ? tuning.stages : kMostStages;
  const uint32_t limit = device.shared_of_processor / CtasOf(heads) - device.shared_kept;
  const uint32_t bytes = Fit(&args, heads, together, stages, limit);
  if (bytes == 0) return "score: head_dim too large for the shared memory of a multiprocessor";
  if (tuning.units != 0) args.room = std::min(args.room, tuning.units);

  const bool shrunk = shape.far != 0.0f;
  ScoreKernelPointer kernel = nullptr;
  if (shape.summaries == SummaryType::kFloat8) {
    kernel = ScoreKernelOfFloat8(heads, shrunk);
  } else if (heads == kFewHeads) {
    kernel = shrunk ? KernelOf<kFewHeads, true>(shape.element)
                    : KernelOf<kFewHeads, false>(shape.element);
  } else {
    kernel = shrunk ? KernelOf<kManyHeads, true>(shape.element)
                    : KernelOf<kManyHeads, false>(shape.element);
  }
  if (kernel == nullptr) return "score: element type unknown";
  cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                           cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  kernel<<<device.processors * CtasOf(heads), kScoreThreads, bytes, stream>>>(args);
  error = cudaGetLastError();
  if (error != cudaSuccess) return cudaGetErrorString(error);
  if (!tuning.ranks) return nullptr;
  return RankScores(shape, mem, rows, full_local, stream);
}

LaunchError ScoreTopK(const Shape& shape, const LayerMemory& mem, const Rows& rows,
                      const void* queries, QueryType type, int64_t row_stride, Stream stream,
                      bool full_local, uint32_t processors) {
  return ScoreTopKTuned(shape, mem, rows, queries, type, row_stride, {.processors = processors},
                        stream, full_local);
}

}  // namespace oasiskv::gpu
