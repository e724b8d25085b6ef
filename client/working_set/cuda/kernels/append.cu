// The new token of each row into its local block.
#include "client/working_set/cuda/kernels/entry.cuh"
#include "client/working_set/cuda/kernels/kernels.h"
#include "client/working_set/cuda/kernels/summarise.cuh"

namespace oasiskv::gpu {
namespace {

constexpr uint32_t kThreads = 256;

// `kBytes` at a time, by one warp.
template <typename Word>
__device__ void CopyKey(const std::byte* from, std::byte* to, uint32_t bytes, uint32_t lane) {
  for (uint32_t at = lane * sizeof(Word); at < bytes; at += 32 * sizeof(Word)) {
    *reinterpret_cast<Word*>(to + at) = *reinterpret_cast<const Word*>(from + at);
  }
}

// One CTA per row, one warp per head: the count of tokens moves once, after all heads have read it.
template <typename Word>
__global__ void AppendKernel(Shape shape, uint32_t layer, LayerMemory mem, Rows rows,
                             const std::byte* keys, const std::byte* values, int64_t row_bytes,
                             ErrorWord* error) {
  const uint32_t row = blockIdx.x;
  if (row >= ActiveRows(rows)) return;
  const uint32_t slot = static_cast<uint32_t>(rows.slots[row]);
  SlotState* const state = &mem.state[slot];
  const uint32_t token = state->local_tokens, block = state->complete;
  if (token >= shape.block_tokens || block >= shape.max_blocks) {
    if (threadIdx.x == 0) ReportError(error, ErrorKind::kOverflow, layer, slot, block);
    return;
  }
  const uint32_t lane = threadIdx.x % 32;
  for (uint32_t head = threadIdx.x / 32; head < shape.kv_heads; head += kThreads / 32) {
    const EntryView local = PageView(shape, mem.pages, slot, shape.resident, head);
    if (keys != nullptr) {
      const int64_t from = row * row_bytes + int64_t{head} * shape.key_bytes;
      const int64_t to = token * local.token_stride;
      CopyKey<Word>(keys + from, local.k + to, shape.key_bytes, lane);
      if (!shape.latent) CopyKey<Word>(values + from, local.v + to, shape.key_bytes, lane);
      __syncwarp();  // the summary below reads what other lanes wrote
    }
    if (token + 1 < shape.block_tokens) continue;
    SummariseWarp(shape.element, shape.summaries, shape.key_bytes, local.k, local.token_stride,
                  shape.block_tokens,
                  mem.summaries + slot * mem.summaries_slot_stride +
                      (uint64_t{head} * shape.max_blocks + block) * shape.summary_bytes,
                  lane);
  }
  __syncthreads();
  if (threadIdx.x == 0) state->local_tokens = token + 1;
}

}  // namespace

LaunchError Append(const Shape& shape, uint32_t layer, const LayerMemory& mem, const Rows& rows,
                   const void* keys, const void* values, int64_t row_stride, ErrorWord* error,
                   Stream stream) {
  if (LaunchError bad = CheckPieces(shape)) return bad;
  if (keys != nullptr && values == nullptr && !shape.latent) return "Append: values is null";
  if (rows.max_rows == 0) return nullptr;
  const int64_t row_bytes = row_stride * (shape.element == Element::kFloat32 ? 4 : 2);
  const auto* k = static_cast<const std::byte*>(keys);
  const auto* v = static_cast<const std::byte*>(values);
  // Rows of an engine's fused projection may begin anywhere.
  const bool wide = (reinterpret_cast<uintptr_t>(k) | reinterpret_cast<uintptr_t>(v) |
                     static_cast<uintptr_t>(row_bytes)) %
                        16 ==
                    0;
  if (wide) {
    AppendKernel<uint4>
        <<<rows.max_rows, kThreads, 0, stream>>>(shape, layer, mem, rows, k, v, row_bytes, error);
  } else {
    AppendKernel<uint16_t>
        <<<rows.max_rows, kThreads, 0, stream>>>(shape, layer, mem, rows, k, v, row_bytes, error);
  }
  return Launched();
}

}  // namespace oasiskv::gpu
