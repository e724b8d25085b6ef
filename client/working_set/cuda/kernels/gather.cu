// Entries of a plan from host memory into their pages, by a few CTAs.
//
// What fills the link is bytes in flight: each warp has `loads` x 512 of them, issued before the
// first of their stores. The unit of work is such a chunk, not an item, so that a plan of few items
// spreads over all warps as well. A warp's lanes look up 32 units at a time (item, source, frame:
// three dependent loads), so that the look-up is paid once for 32 chunks.
#include "client/working_set/cuda/kernels/entry.cuh"
#include "client/working_set/cuda/kernels/kernels.h"

namespace oasiskv::gpu {
namespace {

constexpr uint32_t kMostThreads = 1024;

// One chunk of one item, as its lane has looked it up.
struct Unit {
  std::byte* from = nullptr;  // the entry in the source's memory; null: from the local page
  int64_t to = 0;             // offset of the page
  int64_t local = 0;          // offset of the local page
  uint32_t chunk = 0;
  bool skip = true;
};

__device__ Unit LookUp(const Shape& shape, uint32_t layer, const LayerMemory& mem, const Plan& plan,
                       const HeadSource* sources, uint32_t number, uint32_t chunk,
                       ErrorWord* error) {
  const PlanItem item = plan.items[number];
  Unit unit{.to = PageOffset(shape, mem.pages, item.slot, item.page, item.head), .chunk = chunk};
  if ((item.flags & kItemRefused) != 0) return unit;
  if ((item.flags & kItemRefused) != 0) return unit;
  if (chunk == 0) {  // until Commit the page holds no block
    mem.map[(size_t{item.slot} * shape.kv_heads + item.head) * shape.resident + item.page] = -1;
  }
  if ((item.flags & kItemPromoted) != 0) {
    unit.local = PageOffset(shape, mem.pages, item.slot, shape.resident, item.head);
    unit.skip = false;
    return unit;
  }
  if ((item.flags & kItemSkipped) != 0) return unit;
  const HeadSource& source = sources[size_t{item.slot} * shape.kv_heads + item.head];
  const uint64_t frame =
      source.frames[layer * source.frames_layer_stride + static_cast<uint32_t>(item.block)];
  if (frame == 0) {
    // Every warp that sees it says so: one that copied a chunk could not know of the others.
    plan.items[number].flags = item.flags | kItemSkipped;
    if (chunk == 0) {
      ReportError(error, ErrorKind::kMissing, layer, item.slot, static_cast<uint32_t>(item.block));
    }
    return unit;
  }
  unit.from =
      reinterpret_cast<std::byte*>(frame + source.entry_offset + layer * source.layer_stride);
  unit.skip = false;
  return unit;
}

__device__ Unit Broadcast(const Unit& mine, int lane) {
  return {.from = reinterpret_cast<std::byte*>(
              __shfl_sync(~0u, reinterpret_cast<unsigned long long>(mine.from), lane)),
          .to = __shfl_sync(~0u, static_cast<long long>(mine.to), lane),
          .local = __shfl_sync(~0u, static_cast<long long>(mine.local), lane),
          .chunk = __shfl_sync(~0u, mine.chunk, lane),
          .skip = __shfl_sync(~0u, mine.skip ? 1 : 0, lane) != 0};
}

template <uint32_t kLoads>
__global__ void __launch_bounds__(kMostThreads, 1)
    GatherKernel(Shape shape, uint32_t layer, LayerMemory mem, Plan plan, const HeadSource* sources,
                 PieceMap map, uint32_t chunks, ErrorWord* error) {
  const uint32_t units = min(*plan.count, plan.capacity) * chunks;
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warps = gridDim.x * (blockDim.x / 32);
  const uint32_t warp = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  for (uint32_t base = warp; base < units; base += 32 * warps) {
    // Unit `base + i * warps` is lane i's: at any time the warps are at neighbouring units.
    Unit mine;
    const uint32_t own = base + lane * warps;
    if (own < units) {
      const uint32_t number = own / chunks;
      mine = LookUp(shape, layer, mem, plan, sources, number, own - number * chunks, error);
    }
    for (uint32_t i = 0; i < 32 && base + i * warps < units; ++i) {
      const Unit unit = Broadcast(mine, static_cast<int>(i));
      if (unit.skip) continue;
      const uint32_t piece = unit.chunk * (32 * kLoads) + lane;
      const EntryView to = PageView(mem.pages, unit.to);
      uint4 data[kLoads];
      if (unit.from != nullptr) {
#pragma unroll
        for (uint32_t j = 0; j < kLoads; ++j) {
          const uint32_t at = piece + 32 * j;
          if (at < map.all) data[j] = LoadPiece(unit.from + uint64_t{at} * 16);
        }
      } else {
        const EntryView local = PageView(mem.pages, unit.local);
#pragma unroll
        for (uint32_t j = 0; j < kLoads; ++j) {
          const uint32_t at = piece + 32 * j;
          if (at < map.all) data[j] = LoadPiece(map.At(local, at));
        }
      }
#pragma unroll
      for (uint32_t j = 0; j < kLoads; ++j) {
        const uint32_t at = piece + 32 * j;
        if (at < map.all) StorePiece(map.At(to, at), data[j]);
      }
    }
  }
}

template <uint32_t kLoads>
LaunchError Launch(const Shape& shape, uint32_t layer, const LayerMemory& mem, const Plan& plan,
                   const HeadSource* sources, const GatherOptions& options, ErrorWord* error,
                   Stream stream) {
  const PieceMap map(shape);
  const uint32_t chunks = (map.all + 32 * kLoads - 1) / (32 * kLoads);
  GatherKernel<kLoads><<<options.ctas, options.threads, 0, stream>>>(shape, layer, mem, plan,
                                                                     sources, map, chunks, error);
  return Launched();
}

}  // namespace

LaunchError Gather(const Shape& shape, uint32_t layer, const LayerMemory& mem, const Plan& plan,
                   const HeadSource* sources, const GatherOptions& options, ErrorWord* error,
                   Stream stream) {
  if (LaunchError bad = CheckPieces(shape)) return bad;
  if (options.ctas == 0 || options.threads == 0 || options.threads % 32 != 0 ||
      options.threads > kMostThreads) {
    return "Gather: ctas is at least 1, threads a multiple of 32, 1024 at most";
  }
  switch (options.loads) {
    case 4:
      return Launch<4>(shape, layer, mem, plan, sources, options, error, stream);
    case 8:
      return Launch<8>(shape, layer, mem, plan, sources, options, error, stream);
    default:
      return "Gather: loads is 4 or 8";
  }
}

}  // namespace oasiskv::gpu
