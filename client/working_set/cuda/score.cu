#include <algorithm>
#include <cmath>

#include "client/working_set/cuda/kernels.h"
#include "client/working_set/cuda/score_kernel.cuh"
#include "client/working_set/cuda/score_tuning.h"

namespace oasiskv::gpu {
namespace {

constexpr uint32_t kFewHeads = 4, kManyHeads = 8;  // query heads of a pass

constexpr uint32_t kFewestStages = 1, kMostStages = 3;
constexpr uint32_t kFewestKeySides = 2, kMostKeySides = 3;
constexpr uint32_t kMostCtas = 8;                           // of a cluster
constexpr uint32_t kMostGroup = 1024, kMostBlocks = 65536;  // sizes below fit 32 bits

using ScoreKernelPointer = void (*)(ScoreArgs);

template <uint32_t kHeads, bool kShrunk>
ScoreKernelPointer KernelOf(Element element) {
  switch (element) {
    case Element::kFloat16:
      return ScoreKernel<Element::kFloat16, kHeads, kShrunk>;
    case Element::kBFloat16:
      return ScoreKernel<Element::kBFloat16, kHeads, kShrunk>;
    case Element::kFloat32:
      return ScoreKernel<Element::kFloat32, kHeads, kShrunk>;
  }
  return nullptr;
}

// What a launch needs to know of the device.
struct Device {
  uint32_t processors = 0;
  uint32_t shared_of_cta = 0;
  cudaError_t Read() {
    int device = 0;
    cudaError_t error = cudaGetDevice(&device);
    const auto read = [&](cudaDeviceAttr what, uint32_t* into) {
      int value = 0;
      if (error == cudaSuccess) error = cudaDeviceGetAttribute(&value, what, device);
      *into = static_cast<uint32_t>(value);
    };
    read(cudaDevAttrMultiProcessorCount, &processors);
    read(cudaDevAttrMaxSharedMemoryPerBlockOptin, &shared_of_cta);
    return error;
  }
};

uint32_t StreamWarps(uint32_t heads) {
  return heads == kFewHeads ? kStreamWarps<kFewHeads> : kStreamWarps<kManyHeads>;
}

// Places everything behind the rings; returns the bytes in all.
uint32_t Place(ScoreArgs* args, uint32_t heads) {
  uint32_t at = StreamWarps(heads) * args->stages * kStageBytes;
  const auto take = [&at](uint32_t bytes) {
    const uint32_t place = at;
    at += (bytes + 15) / 16 * 16;
    return place;
  };
  args->barriers_at = take(sizeof(ScoreBarriers));
  args->works_at = take(PairList::kTable * sizeof(HeadWork));
  args->queries_at = take(2 * QueryWords(args->query_dims, heads) * 4);
  args->keys_at = take(args->key_sides * args->max_blocks * 4);
  args->bounds_at = take(args->stored ? 2 * args->group * args->max_blocks * 4 : 0);
  args->best_at = take(2 * args->group * 4);
  args->winners_at = take(RankRoom(args->resident) * 8);
  args->histogram_at = take(kRankDigits * 4);
  args->words_at = take(kRankWords * 4);
  return at;
}

LaunchError CheckShape(const Shape& shape) {
  if (shape.head_dim == 0 || shape.head_dim % 8 != 0) {
    return "score: head_dim is not a multiple of 8";
  }
  if (shape.group == 0 || shape.resident == 0) return "score: group or resident blocks are 0";
  if (shape.group > kMostGroup || shape.max_blocks > kMostBlocks) {
    return "score: more than 1024 query heads of a KV head, or more than 65536 blocks";
  }
  return nullptr;
}

}  // namespace

LaunchError ScoreTopKTuned(const Shape& shape, const LayerMemory& mem, const Rows& rows,
                           const void* queries, QueryType type, int64_t row_stride,
                           const ScoreTuning& tuning, Stream stream, bool full_local) {
  if (const LaunchError error = CheckShape(shape); error != nullptr) return error;
  if (rows.max_rows == 0) return nullptr;
  Device device;
  if (const cudaError_t error = device.Read(); error != cudaSuccess) {
    return cudaGetErrorString(error);
  }
  if (tuning.processors != 0) device.processors = std::min(device.processors, tuning.processors);
  const uint32_t heads = shape.group <= kFewHeads ? kFewHeads : kManyHeads;
  const uint32_t pairs = rows.max_rows * shape.kv_heads;
  const uint32_t dims = kSegment / (shape.summary_bytes / 2 / shape.head_dim);

  ScoreArgs args{};
  args.summaries = mem.summaries;
  args.slot_stride = mem.summaries_slot_stride;
  args.state = mem.state;
  args.predicted = mem.predicted;
  args.rows = rows;
  args.queries = queries;
  args.row_stride = row_stride;
  args.query_type = type;
  args.combine = shape.combine;
  args.full_local = full_local;
  args.kv_heads = shape.kv_heads;
  args.group = shape.group;
  args.head_dim = shape.head_dim;
  args.summary_bytes = shape.summary_bytes;
  args.block_tokens = shape.block_tokens;
  args.max_blocks = shape.max_blocks;
  args.resident = shape.resident;
  args.near = shape.near;
  args.far = shape.far;
  args.steps = (shape.head_dim + dims - 1) / dims;
  args.query_dims = args.steps * dims;
  args.passes = (shape.group + heads - 1) / heads;
  const bool normalized = shape.combine == GroupCombine::kNormalizedMax;
  // Stored sums before deep rings, deep rings before shallow ones.
  const uint32_t most = tuning.stages != 0 ? tuning.stages : kMostStages;
  const uint32_t fewest = tuning.stages != 0 ? tuning.stages : kFewestStages;
  uint32_t bytes = 0;
  const auto fits = [&](bool stored) {
    args.stored = stored;
    args.rounds = normalized && !stored ? 2 * args.passes : args.passes;
    for (args.stages = most; args.stages >= fewest; --args.stages) {
      for (args.key_sides = kMostKeySides; args.key_sides >= kFewestKeySides; --args.key_sides) {
        bytes = Place(&args, heads);
        if (bytes <= device.shared_of_cta) return true;
      }
    }
    return false;
  };
  if (!(normalized && fits(true)) && !fits(false)) {
    return "score: max_blocks, resident blocks or head_dim too large for the shared memory of a "
           "multiprocessor (8 bytes a block)";
  }

  // Few pairs are spread over clusters, as long as every warp keeps a tile or more.
  args.cluster = 1;
  while (args.cluster < kMostCtas && pairs * args.cluster * 2 <= device.processors &&
         shape.max_blocks >= args.cluster * 2 * StreamWarps(heads) * kTileBlocks) {
    args.cluster *= 2;
  }
  if (tuning.cluster != 0) args.cluster = tuning.cluster;

  const bool shrunk = shape.far != 0.0f;
  const ScoreKernelPointer kernel = heads == kFewHeads
                                        ? shrunk ? KernelOf<kFewHeads, true>(shape.element)
                                                 : KernelOf<kFewHeads, false>(shape.element)
                                    : shrunk ? KernelOf<kManyHeads, true>(shape.element)
                                             : KernelOf<kManyHeads, false>(shape.element);
  if (kernel == nullptr) return "score: element type unknown";
  cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                           cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return cudaGetErrorString(error);

  const uint32_t clusters = std::min(pairs, std::max(1u, device.processors / args.cluster));
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = args.cluster;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = clusters * args.cluster;
  config.blockDim = StreamWarps(heads) * 32 + kRankThreads;
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = args.cluster > 1 ? 1 : 0;
  error = cudaLaunchKernelEx(&config, kernel, args);
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

LaunchError ScoreTopK(const Shape& shape, const LayerMemory& mem, const Rows& rows,
                      const void* queries, QueryType type, int64_t row_stride, Stream stream,
                      bool full_local, uint32_t processors) {
  return ScoreTopKTuned(shape, mem, rows, queries, type, row_stride, {.processors = processors},
                        stream, full_local);
}

}  // namespace oasiskv::gpu
