// Entries out of HBM into frames in host memory, with their summaries.
#include "client/working_set/cuda/kernels/entry.cuh"
#include "client/working_set/cuda/kernels/kernels.h"
#include "client/working_set/cuda/kernels/summarise.cuh"

namespace oasiskv::gpu {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kScatterThreads = 512;

// From a frame's first summary; there they are of the keys' type.
__device__ uint64_t FrameSummary(const Shape& shape, uint32_t layer, uint32_t head) {
  return (uint64_t{layer} * shape.kv_heads + head) * 2 * shape.key_bytes;
}

__global__ void WriteBackKernel(Shape shape, uint32_t layer, LayerMemory mem, Rows rows,
                                const HeadSource* sources, uint64_t summary_offset, PieceMap map,
                                ErrorWord* error) {
  const uint32_t row = blockIdx.x;
  if (row >= ActiveRows(rows)) return;
  const uint32_t slot = static_cast<uint32_t>(rows.slots[row]);
  const SlotState& state = mem.state[slot];
  if (state.pending == 0 || state.promoted < 0) return;
  const uint32_t block = static_cast<uint32_t>(state.promoted), lane = threadIdx.x % 32;
  for (uint32_t head = threadIdx.x / 32; head < shape.kv_heads; head += kThreads / 32) {
    const HeadSource& source = sources[size_t{slot} * shape.kv_heads + head];
    const uint64_t frame = source.frames[layer * source.frames_layer_stride + block];
    // Memory that is no longer this request's is not written to. One lane looks, for all.
    const bool holds = __shfl_sync(~0u, lane == 0 && GrantHolds(source) ? 1 : 0, 0) != 0;
    if (frame == 0 || !holds) {
      if (lane == 0) {
        ReportError(error, frame == 0 ? ErrorKind::kMissing : ErrorKind::kStale, layer, slot,
                    frame == 0 ? block : head);
      }
      continue;
    }
    auto* const entry =
        reinterpret_cast<std::byte*>(frame + source.entry_offset + layer * source.layer_stride);
    const EntryView page = PageView(shape, mem.pages, slot, shape.resident, head);
    CopyPieces(map, ContiguousView(shape, entry), page, 0, map.all, lane);
    if (summary_offset == 0) continue;
    // Made anew: the pool's may be rounded.
    SummariseWarp(
        shape.element, SummaryType::kAsKeys, shape.key_bytes, page.k, page.token_stride,
        shape.block_tokens,
        reinterpret_cast<std::byte*>(frame + summary_offset) + FrameSummary(shape, layer, head),
        lane);
  }
}

// A warp an entry; the entries of a frame's layer are neighbours, and so are the warps that write
// them.
__global__ void __launch_bounds__(kScatterThreads)
    ScatterKernel(Shape shape, uint32_t layer, DensePages dense, uint32_t request, uint32_t first,
                  uint32_t blocks, const uint64_t* frames, PieceMap map) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warps = gridDim.x * (kScatterThreads / 32);
  for (uint32_t i = blockIdx.x * (kScatterThreads / 32) + threadIdx.x / 32;
       i < blocks * shape.kv_heads; i += warps) {
    const uint32_t block = i / shape.kv_heads, head = i % shape.kv_heads;
    const uint64_t frame = frames[block];
    if (frame == 0) continue;
    const EntryView from = DenseView(dense, request, first + block, head);
    auto* const base = reinterpret_cast<std::byte*>(frame);
    auto* const entry = base + (uint64_t{layer} * shape.kv_heads + head) * shape.entry_bytes;
    CopyPieces(map, ContiguousView(shape, entry), from, 0, map.all, lane);
    SummariseWarp(shape.element, SummaryType::kAsKeys, shape.key_bytes, from.k, from.token_stride,
                  shape.block_tokens,
                  base + uint64_t{shape.layers} * shape.kv_heads * shape.entry_bytes +
                      FrameSummary(shape, layer, head),
                  lane);
  }
}

}  // namespace

LaunchError WriteBack(const Shape& shape, uint32_t layer, const LayerMemory& mem, const Rows& rows,
                      const HeadSource* sources, uint64_t summary_offset, ErrorWord* error,
                      Stream stream) {
  if (LaunchError bad = CheckPieces(shape)) return bad;
  if (rows.max_rows == 0) return nullptr;
  WriteBackKernel<<<rows.max_rows, kThreads, 0, stream>>>(shape, layer, mem, rows, sources,
                                                          summary_offset, PieceMap(shape), error);
  return Launched();
}

LaunchError ScatterToFrames(const Shape& shape, uint32_t layer, const DensePages& dense,
                            uint32_t request, uint32_t first, uint32_t blocks,
                            const uint64_t* frames, uint32_t ctas, Stream stream) {
  if (LaunchError bad = CheckPieces(shape)) return bad;
  if (ctas == 0) return "ScatterToFrames: ctas is at least 1";
  if (blocks == 0) return nullptr;
  ScatterKernel<<<ctas, kScatterThreads, 0, stream>>>(shape, layer, dense, request, first, blocks,
                                                      frames, PieceMap(shape));
  return Launched();
}

}  // namespace oasiskv::gpu
