// A request of a dense paged cache becomes a slot of the working set.
#include "client/working_set/cuda/kernels/entry.cuh"
#include "client/working_set/cuda/kernels/kernels.h"

namespace oasiskv::gpu {
namespace {

constexpr uint32_t kThreads = 256;

// A warp a page; page K is the local block, of which only the tokens that it has are copied.
__global__ void ConvertKernel(Shape shape, LayerMemory mem, DensePages dense, uint32_t request,
                              uint32_t slot, PieceMap map) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t number = blockIdx.x * (kThreads / 32) + threadIdx.x / 32;
  const uint32_t head = number / (shape.resident + 1), page = number % (shape.resident + 1);
  if (head >= shape.kv_heads) return;
  const EntryView to = PageView(shape, mem.pages, slot, page, head);
  if (page < shape.resident) {
    const int32_t block = mem.map[(size_t{slot} * shape.kv_heads + head) * shape.resident + page];
    if (block < 0) return;
    CopyPieces(map, to, DenseView(dense, request, static_cast<uint32_t>(block), head), 0, map.all,
               lane);
    return;
  }
  const SlotState& state = mem.state[slot];
  if (state.local_tokens == 0) return;
  const EntryView from = DenseView(dense, request, state.complete, head);
  const uint32_t pieces = min(state.local_tokens, shape.block_tokens) * map.per_token;
  CopyPieces(map, to, from, 0, pieces, lane);
  if (!shape.latent) CopyPieces(map, to, from, map.half, map.half + pieces, lane);
}

}  // namespace

LaunchError DenseToSparse(const Shape& shape, const LayerMemory& mem, const DensePages& dense,
                          uint32_t request, uint32_t slot, Stream stream) {
  if (LaunchError bad = CheckPieces(shape)) return bad;
  constexpr uint32_t kWarps = kThreads / 32;
  const uint32_t pages = shape.kv_heads * (shape.resident + 1);
  if (pages == 0) return nullptr;
  ConvertKernel<<<(pages + kWarps - 1) / kWarps, kThreads, 0, stream>>>(shape, mem, dense, request,
                                                                        slot, PieceMap(shape));
  return Launched();
}

}  // namespace oasiskv::gpu
