// Reference-counted frames out of slabs of one frame size each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "oasiskv/ids.h"
#include "server/pool/pool.h"

namespace oasiskv::server {

// A frame: the first slab of the slab (or run of slabs) it lies in, and its place there.
struct Frame {
  uint32_t slab = 0;
  uint32_t index = 0;
  friend constexpr auto operator<=>(const Frame&, const Frame&) = default;
};

struct SlabClassStats {
  uint64_t stride = 0, slabs = 0, frames = 0, frames_used = 0;
};

// Thread contract: not safe for concurrent use (the core's mutex guards it).
//
// A frame is allocated with one reference and goes back when its last reference goes; an empty slab
// goes back to the pool at once. Free frames are reused lowest address first, runs that hold a
// whole request before scattered ones, so that neighbouring blocks lie side by side. Memory is not
// cleared between two users: the grant rules keep old bytes unread.
//
// One reference per frame may be marked as that of a quarantined writer: what only that reference
// holds is counted apart.
class SlabAllocator {
 public:
  // `pool` must outlive the allocator.
  explicit SlabAllocator(Pool& pool);

  // Appends `count` frames of `stride` bytes to `out`, or nothing and CAPACITY with the sizes asked
  // and free.
  absl::Status Allocate(uint64_t stride, uint32_t count, std::vector<Frame>& out);
  void Ref(std::span<const Frame> frames);
  void Unref(std::span<const Frame> frames);
  // One of each frame's references is now (no longer) that of a quarantined writer.
  void Quarantine(std::span<const Frame> frames);
  void Unquarantine(std::span<const Frame> frames);

  FrameAddress Address(Frame frame) const;
  std::byte* Data(Frame frame) const;

  // free + used + overhead = the pool's bytes, always.
  uint64_t free_bytes() const;
  uint64_t used_bytes() const { return used_bytes_; }
  uint64_t overhead_bytes() const { return overhead_bytes_; }
  uint64_t quarantined_bytes() const { return quarantined_bytes_; }
  uint64_t metadata_bytes() const;
  std::vector<SlabClassStats> Classes() const;

 private:
  // One per slab of the pool; in use where it is the first slab of a class's slab.
  struct Slab {
    uint64_t stride = 0;
    uint32_t capacity = 0;    // frames
    uint32_t free = 0;        // frames
    uint32_t single_ref = 0;  // the reference word when capacity is 1
    // Reference words [capacity], then the free map, one bit per frame; null when capacity is 1.
    std::unique_ptr<uint32_t[]> cells;
  };
  static_assert(sizeof(Slab) <= 32, "a slab of one frame must stay within the metadata budget");

  struct Class {
    uint32_t capacity = 0;  // frames per slab
    uint32_t span = 0;      // slabs of the pool per slab of the class
    uint64_t slabs = 0;
    uint64_t used = 0;
    absl::btree_set<uint32_t> partial;  // slabs with used and free frames, by address
  };
  struct Run {
    uint32_t first = 0, length = 0;
  };

  static constexpr uint32_t kQuarantineBit = uint32_t{1} << 31;

  static uint32_t* Refs(Slab& slab) {
    return slab.capacity == 1 ? &slab.single_ref : slab.cells.get();
  }
  static uint32_t* FreeMap(Slab& slab) { return slab.cells.get() + slab.capacity; }
  static Run NextFreeRun(Slab& slab, uint32_t from);

  bool TakeSlab(uint64_t stride, Class& c, uint32_t& slab);
  void UseFrames(uint32_t slab_number, Class& c, Run run, std::vector<Frame>& out);
  // Uses free runs of at least `min_run` frames, lowest address first, until `left` is 0.
  void UsePartial(Class& c, uint32_t min_run, uint32_t& left, std::vector<Frame>& out);
  void FreeFrame(Frame frame);
  absl::Status Full(uint64_t stride, uint32_t count) const;

  Pool& pool_;
  std::vector<Slab> slabs_;
  absl::btree_map<uint64_t, Class> classes_;  // by stride; only those that have slabs
  uint64_t used_bytes_ = 0;
  uint64_t overhead_bytes_ = 0;
  uint64_t quarantined_bytes_ = 0;
  uint64_t cell_bytes_ = 0;
};

}  // namespace oasiskv::server
