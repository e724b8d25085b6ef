// Entries of an engine's dense paged KV cache.
#pragma once

#include "client/working_set/cuda/kernels/entry.cuh"

namespace oasiskv::gpu {

// For reading; an EntryView serves both ways.
__device__ inline EntryView DenseView(const DensePages& dense, uint32_t request, uint32_t block,
                                      uint32_t head) {
  const int64_t offset = dense.table[request * dense.table_stride + block] * dense.page_stride +
                         head * dense.head_stride;
  return {const_cast<std::byte*>(dense.k) + offset, const_cast<std::byte*>(dense.v) + offset,
          dense.token_stride};
}

}  // namespace oasiskv::gpu
