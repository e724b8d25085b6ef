// What a byte range of a frame touches, and whether a grant covers it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "common/fabric/fabric.h"
#include "oasiskv/geometry.h"

namespace oasiskv::server {

// Layers [first, last] of a part of the frame; none when first > last.
struct LayerSpan {
  uint32_t first = 1, last = 0;
  bool any() const { return first <= last; }
};

struct TouchedLayers {
  LayerSpan entries;
  LayerSpan summaries;
};

// Thread contract: constant after construction.
//
// Bounds and heads of one grant. It holds no reference to the grant.
class RangeChecker {
 public:
  // Blocks [0, blocks) and heads [first_head, first_head + head_count) of `geometry`.
  RangeChecker(const Geometry& geometry, uint32_t blocks, uint32_t first_head, uint32_t head_count);

  // Fills `touched`. OUT_OF_RANGE: the block, an empty range, or one beyond frame_bytes. FOREIGN: a head
  // that is not covered; a range over several entries (summaries) must be covered with every one
  // that it touches. `index` names the range in the text.
  absl::Status Check(const fabric::RemoteRange& range, size_t index, TouchedLayers& touched) const;

 private:
  absl::Status CheckPart(uint64_t begin, uint64_t end, uint32_t piece_bytes, const char* what,
                         const fabric::RemoteRange& range, size_t index, LayerSpan& span) const;

  const uint32_t blocks_, heads_, first_head_, head_count_;
  const uint32_t entry_bytes_, summary_bytes_;
  const uint64_t summaries_offset_, frame_bytes_;
};

}  // namespace oasiskv::server
