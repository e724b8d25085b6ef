// Entries as 16-byte pieces, wherever their tokens lie, and how the transfer kernels move them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "client/working_set/cuda/kernels/kernels.h"
#include "client/working_set/cuda/kernels/layout.h"

namespace oasiskv::gpu {

// The text of the launch that just was made, or null.
inline LaunchError Launched() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

inline LaunchError CheckPieces(const Shape& shape) {
  if (shape.key_bytes == 0 || shape.key_bytes % 16 != 0 || shape.block_tokens == 0) {
    return "one token of one head is not a multiple of 16 bytes; the kernels move 16 at a time";
  }
  return nullptr;
}

__device__ inline uint32_t ActiveRows(const Rows& rows) { return min(*rows.count, rows.max_rows); }

// Blocks that a prediction may choose: the complete ones and, with `full_local`, the local one when
// it is full.
__device__ inline uint32_t Candidates(const SlotState& state, bool full_local,
                                      uint32_t block_tokens, uint32_t max_blocks) {
  const uint32_t local = full_local && state.local_tokens >= block_tokens ? 1 : 0;
  return min(state.complete + local, max_blocks);
}

// See ErrorWord. `code` is read over the link, so only the rare path comes here.
__device__ inline void ReportError(ErrorWord* error, ErrorKind kind, uint32_t layer, uint32_t slot,
                                   uint32_t detail) {
  if (*reinterpret_cast<volatile uint32_t*>(&error->code) != 0) return;
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(error),
               "r"(static_cast<uint32_t>(kind)), "r"(layer), "r"(slot), "r"(detail)
               : "memory");
}

// The word now, not a cached one.
__device__ inline bool GrantHolds(const HeadSource& source) {
  if (source.grant_word == nullptr) return true;
  uint64_t word;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(source.grant_word));
  return word == source.epoch;
}

// Host memory and entries are read once: no line of them is worth a place in the first cache.
__device__ inline uint4 LoadPiece(const std::byte* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}
__device__ inline void StorePiece(std::byte* to, uint4 v) {
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

// The bytes of one entry: token t of K at k + t * token_stride, of V at v + t * token_stride. A
// contiguous entry is one whose stride is key_bytes and whose v follows k.
struct EntryView {
  std::byte* k;
  std::byte* v;
  int64_t token_stride;
};

// Splits the number of a 16-byte piece into half, token and place in the token.
struct PieceMap {
  uint32_t all = 0;        // pieces of an entry
  uint32_t half = 0;       // of its K
  uint32_t per_token = 0;  // of one key
  uint64_t inverse = 0;    // (n * inverse) >> 32 == n / per_token for every n < all

  PieceMap() = default;
  explicit PieceMap(const Shape& shape)
      : all(shape.entry_bytes / 16),
        half(shape.block_tokens * shape.key_bytes / 16),
        per_token(shape.key_bytes / 16),
        inverse(((uint64_t{1} << 32) + per_token - 1) / per_token) {}

  __device__ std::byte* At(const EntryView& entry, uint32_t piece) const {
    const bool value = piece >= half;
    const uint32_t in = value ? piece - half : piece;
    const uint32_t token = static_cast<uint32_t>((in * inverse) >> 32);
    return (value ? entry.v : entry.k) + token * entry.token_stride +
           (in - token * per_token) * uint64_t{16};
  }
};

__device__ inline int64_t PageOffset(const Shape& shape, const Pages& pages, uint32_t slot,
                                     uint32_t page, uint32_t head) {
  const int64_t index = int64_t{slot} * (shape.resident + 1) + page;
  const int64_t physical = pages.table == nullptr ? index : pages.table[index];
  return physical * pages.page_stride + head * pages.head_stride;
}
__device__ inline EntryView PageView(const Pages& pages, int64_t offset) {
  return {pages.k + offset, pages.v + offset, pages.token_stride};
}
__device__ inline EntryView PageView(const Shape& shape, const Pages& pages, uint32_t slot,
                                     uint32_t page, uint32_t head) {
  return PageView(pages, PageOffset(shape, pages, slot, page, head));
}
__device__ inline EntryView ContiguousView(const Shape& shape, std::byte* entry) {
  return {entry, entry + uint64_t{shape.block_tokens} * shape.key_bytes, shape.key_bytes};
}

// One warp copies pieces [first, end) of an entry, four loads of a lane in flight.
__device__ inline void CopyPieces(const PieceMap& map, const EntryView& to, const EntryView& from,
                                  uint32_t first, uint32_t end, uint32_t lane) {
  constexpr uint32_t kLoads = 4;
  for (uint32_t at = first + lane; at < end; at += 32 * kLoads) {
    uint4 data[kLoads];
#pragma unroll
    for (uint32_t j = 0; j < kLoads; ++j) {
      if (at + 32 * j < end) data[j] = LoadPiece(map.At(from, at + 32 * j));
    }
#pragma unroll
    for (uint32_t j = 0; j < kLoads; ++j) {
      if (at + 32 * j < end) StorePiece(map.At(to, at + 32 * j), data[j]);
    }
  }
}

// An entry of an engine's dense paged KV cache, for reading.
__device__ inline EntryView DenseView(const DensePages& dense, uint32_t request, uint32_t block,
                                      uint32_t head) {
  const int64_t offset = dense.table[request * dense.table_stride + block] * dense.page_stride +
                         head * dense.head_stride;
  return {const_cast<std::byte*>(dense.k) + offset, const_cast<std::byte*>(dense.v) + offset,
          dense.token_stride};
}

}  // namespace oasiskv::gpu
