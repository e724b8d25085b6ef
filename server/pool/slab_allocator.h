// Reference-counted frames out of slabs of one frame size each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
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

// Whose bytes memory may hold. kTenant: a frame is cleared before it passes to another tenant.
// kAlways: before each use. kNever: a reader may be given what any tenant wrote before.
enum class ClearFrames { kTenant, kAlways, kNever };

// A tenant, as frames remember whose bytes they hold.
enum class Owner : uint32_t {
  kNobody = 0,             // the memory is clear
  kSeveral = 0xffffffffu,  // equal to no tenant
};

// Thread contract: not safe for concurrent use (the core's mutex guards it).
//
// A frame is allocated with one reference and goes back when its last reference goes; an empty slab
// goes back to the pool at once. Free frames are reused lowest address first, runs that hold a
// whole request before scattered ones, so that neighbouring blocks lie side by side.
//
// Each frame and each free slab remembers whose bytes it holds. The allocator itself clears
// nothing, since that takes long: Allocate names the frames that the caller must clear before
// anybody gets them, and a scrubber takes free memory out with HoldDirty, clears it, and brings it
// back with Cleared. What it holds counts as free all the while.
//
// One reference per frame may be marked as that of a quarantined writer: what only that reference
// holds is counted apart.
class SlabAllocator {
 public:
  // `pool` must outlive the allocator.
  explicit SlabAllocator(Pool& pool, ClearFrames clear = ClearFrames::kTenant);

  // Appends `count` frames of `stride` bytes to `out`, and to `dirty` those of them that must be
  // cleared before `owner` gets them; or nothing, and CAPACITY with the sizes asked and free.
  absl::Status Allocate(uint64_t stride, uint32_t count, Owner owner, std::vector<Frame>& out,
                        std::vector<Frame>& dirty);
  void Ref(std::span<const Frame> frames);
  void Unref(std::span<const Frame> frames);
  // One of each frame's references is now (no longer) that of a quarantined writer.
  void Quarantine(std::span<const Frame> frames);
  void Unquarantine(std::span<const Frame> frames);

  // Free memory of one slab that must be cleared, taken out of use for that.
  struct Dirty {
    uint32_t slab = 0;
    std::vector<Frame> frames;  // empty: the whole slab, which is the pool's
    std::vector<std::span<std::byte>> memory;
  };
  // About `most_bytes` of it, a slab or a frame at least; nullopt when there is none that
  // another user than the last could get.
  std::optional<Dirty> HoldDirty(uint64_t most_bytes);
  // It has been cleared: back to the free memory.
  void Cleared(const Dirty& dirty);

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
    uint32_t capacity = 0;      // frames
    uint32_t free = 0;          // frames
    uint32_t single_ref = 0;    // the reference word when capacity is 1
    uint32_t single_owner = 0;  // the frame's Owner when capacity is 1
    // Of a slab in use: whose bytes lie outside its frames. Of a free one: of all its bytes.
    Owner rest = Owner::kNobody;
    bool queued = false;  // in to_scrub_
    // Reference words [capacity], then owners [capacity], then the free map, one bit per frame;
    // null when capacity is 1.
    std::unique_ptr<uint32_t[]> cells;
  };
  static_assert(sizeof(Slab) <= 40, "a slab of one frame must stay within the metadata budget");

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
  // Each holds an Owner.
  static uint32_t* Owners(Slab& slab) {
    return slab.capacity == 1 ? &slab.single_owner : slab.cells.get() + slab.capacity;
  }
  static uint32_t* FreeMap(Slab& slab) { return slab.cells.get() + 2 * slab.capacity; }
  static size_t CellWords(uint32_t capacity) { return 2 * capacity + (capacity + 31) / 32; }
  static Run NextFreeRun(Slab& slab, uint32_t from);

  // What one Allocate fills.
  struct Request {
    Owner owner;
    uint32_t left;
    std::vector<Frame>& out;
    std::vector<Frame>& dirty;
  };

  bool TakeSlab(uint64_t stride, Class& c, uint32_t& slab);
  void UseFrames(uint32_t slab_number, Class& c, Run run, Request& request);
  // Uses free runs of at least `min_run` frames, lowest address first, until nothing is left.
  void UsePartial(Class& c, uint32_t min_run, Request& request);
  void FreeFrame(Frame frame);
  // The frame is on the free map again; a slab whose frames are all free goes back to the pool.
  void ReturnFrame(Frame frame);
  // True when a frame that holds bytes of `holder` must be cleared for `owner`.
  bool MustClear(Owner holder, Owner owner) const;
  // Notes that free memory of the slab holds `holder`'s bytes.
  void Queue(uint32_t slab_number, Owner holder);
  void QueueAll();
  void HoldDirtyFrames(uint64_t most_bytes, Dirty& out);
  absl::Status Full(uint64_t stride, uint32_t count) const;

  Pool& pool_;
  const ClearFrames clear_;
  std::vector<Slab> slabs_;
  std::deque<uint32_t> to_scrub_;  // slabs that may have free memory to clear, each once
  // The only owner so far; with it alone nothing is worth clearing. kSeveral: there were more.
  Owner only_owner_ = Owner::kNobody;
  absl::btree_map<uint64_t, Class> classes_;  // by stride; only those that have slabs
  uint64_t used_bytes_ = 0;
  uint64_t overhead_bytes_ = 0;
  uint64_t quarantined_bytes_ = 0;
  uint64_t cell_bytes_ = 0;
};

}  // namespace oasiskv::server
