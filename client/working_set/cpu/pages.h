// The memory of a working set: resident pages and key summaries of every request slot; what all its
// parts share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "common/mapped_memory.h"
#include "oasiskv/geometry.h"
#include "oasiskv/working_set.h"

namespace oasiskv {

// Thread contract: hands out addresses only; who may touch the bytes when is LayerState's matter.
//
// Sized once: pages [layer][slot][head][K + 1][entry] (page K is the local block), then summaries
// [slot][layer][head][block][min|max][head_dim], so that scoring a head reads one run of memory.
// Each (layer, slot) begins on 64 bytes. Untouched memory costs nothing but address space.
class PagePool {
 public:
  // CAPACITY naming the sizes when this machine has less memory available.
  static absl::StatusOr<PagePool> Create(const Geometry& geometry, uint32_t resident_blocks,
                                         uint32_t slots, uint32_t max_blocks);

  // [head][K + 1][entry] of one layer and slot.
  std::byte* Pages(uint32_t layer, uint32_t slot) const {
    return memory_.data() + (uint64_t{layer} * slots_ + slot) * pages_stride_;
  }
  std::byte* Page(uint32_t layer, uint32_t slot, uint32_t head, uint32_t page) const {
    return Pages(layer, slot) + (uint64_t{head} * (resident_blocks_ + 1) + page) * entry_bytes_;
  }
  // [block][min|max][head_dim] of one head.
  std::byte* Summaries(uint32_t layer, uint32_t slot, uint32_t head) const {
    return memory_.data() + summaries_offset_ +
           (uint64_t{slot} * layers_ + layer) * summaries_stride_ +
           uint64_t{head} * max_blocks_ * summary_bytes_;
  }

 private:
  PagePool() = default;

  uint32_t layers_ = 0, slots_ = 0, resident_blocks_ = 0, max_blocks_ = 0;
  uint64_t entry_bytes_ = 0, summary_bytes_ = 0;
  uint64_t pages_stride_ = 0, summaries_stride_ = 0, summaries_offset_ = 0;
  Mapping memory_;
};

// What every part of one working set shares.
//
// Thread contract: constant after construction (the pool's bytes follow LayerState's rules).
struct WorkingSetContext {
  WorkingSetOptions options;
  uint32_t group = 1;  // query heads of one KV head
  uint32_t cap = 0;    // C
  PagePool pool;

  uint32_t heads() const { return options.geometry.kv_heads; }
  uint32_t resident() const { return options.resident_blocks; }
};

}  // namespace oasiskv
