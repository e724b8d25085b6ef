#include <algorithm>
#include <cmath>

#include "client/working_set/cuda/kernels.h"
#include "client/working_set/cuda/score_kernel.cuh"
#include "client/working_set/cuda/score_tuning.h"

namespace oasiskv::gpu {
namespace {

constexpr uint32_t kFewHeads = 4, kManyHeads = 8;  // query heads of a pass
constexpr uint32_t kStoredBytes = 48 << 10;        // of sums that kNormalizedMax keeps

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
  int processors = 0;
  int shared_of_processor = 0, shared_of_cta = 0, reserved = 0;
  cudaError_t Read() {
    int device = 0;
    cudaError_t error = cudaGetDevice(&device);
    const auto read = [&](cudaDeviceAttr what, int* into) {
      if (error == cudaSuccess) error = cudaDeviceGetAttribute(into, what, device);
    };
    read(cudaDevAttrMultiProcessorCount, &processors);
    read(cudaDevAttrMaxSharedMemoryPerMultiprocessor, &shared_of_processor);
    read(cudaDevAttrMaxSharedMemoryPerBlockOptin, &shared_of_cta);
    read(cudaDevAttrReservedSharedMemoryPerBlock, &reserved);
    return error;
  }
};

// Places everything behind the rings; returns the bytes in all.
uint32_t Place(ScoreArgs* args, uint32_t heads) {
  uint32_t at = kStreamWarps * args->stages * kStageBytes;
  const auto take = [&at](uint32_t bytes) {
    const uint32_t place = at;
    at += (bytes + 15) / 16 * 16;
    return place;
  };
  args->queries_at = take(args->query_dims * heads * 4);
  args->winners_at = take(RankWinners(args->resident) * 8);
  args->keys_at = take(args->max_blocks * 4);
  args->histogram_at = take(kRankThreads * 4);
  args->words_at = take(kRankWords * 4);
  args->best_at = take(args->group * 4);
  args->bounds_at = take(args->stored ? args->group * args->max_blocks * 4 : 0);
  return at;
}

LaunchError CheckShape(const Shape& shape) {
  if (shape.head_dim == 0 || shape.head_dim % 8 != 0) {
    return "score: head_dim is not a multiple of 8";
  }
  if (shape.group == 0 || shape.resident == 0) return "score: group or resident blocks are 0";
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
  args.stored = normalized && uint64_t{shape.group} * shape.max_blocks * 4 <= kStoredBytes;
  args.rounds = normalized && !args.stored ? 2 * args.passes : args.passes;

  // The deepest rings with which two CTAs fit a multiprocessor; else whatever fits at all.
  uint32_t bytes = 0;
  const uint32_t half = device.shared_of_processor / 2 - device.reserved;
  for (args.stages = tuning.stages != 0 ? tuning.stages : 3;; --args.stages) {
    bytes = Place(&args, heads);
    if (bytes <= half || args.stages == 2 || tuning.stages != 0) break;
  }
  if (bytes > static_cast<uint32_t>(device.shared_of_cta)) {
    return "score: max_blocks, resident blocks or head_dim too large for the shared memory of a "
           "multiprocessor (one key of 4 bytes a block)";
  }
  uint32_t ctas = tuning.ctas != 0 ? tuning.ctas : bytes <= half ? 2 : 1;

  // Few pairs are spread over clusters, as long as every warp keeps a tile or more.
  args.cluster = 1;
  while (args.cluster < 8 && pairs * args.cluster * 2 <= device.processors * ctas &&
         shape.max_blocks >= args.cluster * 2 * kStreamWarps * kTileBlocks) {
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

  const uint32_t clusters = std::min(pairs, std::max(1u, device.processors * ctas / args.cluster));
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = args.cluster;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = clusters * args.cluster;
  config.blockDim = kScoreThreads;
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = args.cluster > 1 ? 1 : 0;
  error = cudaLaunchKernelEx(&config, kernel, args);
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

LaunchError ScoreTopK(const Shape& shape, const LayerMemory& mem, const Rows& rows,
                      const void* queries, QueryType type, int64_t row_stride, Stream stream,
                      bool full_local) {
  return ScoreTopKTuned(shape, mem, rows, queries, type, row_stride, ScoreTuning(), stream,
                        full_local);
}

}  // namespace oasiskv::gpu
