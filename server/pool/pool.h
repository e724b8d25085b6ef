// All arenas of the daemon, cut into slabs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "oasiskv/ids.h"
#include "server/pool/arena.h"

namespace oasiskv::server {

struct PoolOptions {
  uint64_t pool_bytes = 0;
  uint64_t arena_bytes = 0;  // 0: one arena
  uint64_t slab_bytes = 0;
  HugePages huge_pages = HugePages::kOff;
  int numa_node = -1;
  int touch_threads = 0;  // 0: one per CPU
};

// Thread contract: not safe for concurrent use (the core's mutex guards it), except that arenas()
// and what only computes addresses is constant after construction.
//
// Slabs are numbered over all arenas. They are handed out lowest address first.
class Pool {
 public:
  // Errors: INVALID_ARGUMENT naming the flag; CAPACITY when the machine has less memory.
  static absl::StatusOr<std::unique_ptr<Pool>> Create(const PoolOptions& options);

  // The first of `span` adjacent slabs of one arena; nullopt when there are none.
  std::optional<uint32_t> Take(uint32_t span);
  void Give(uint32_t first, uint32_t span);
  // Keeps a free slab from Take for a while; it still counts as free. False when it is not free.
  bool Hold(uint32_t slab);
  void Unhold(uint32_t slab);

  const std::vector<Arena>& arenas() const { return arenas_; }
  uint64_t slab_bytes() const { return slab_bytes_; }
  uint64_t pool_bytes() const { return slab_bytes_ * slabs_total(); }
  uint64_t arena_bytes() const { return slab_bytes_ * slabs_per_arena_; }
  uint32_t slabs_total() const { return static_cast<uint32_t>(free_.size()); }
  uint32_t slabs_free() const { return slabs_free_; }
  uint32_t slabs_per_arena() const { return slabs_per_arena_; }
  bool huge_pages() const;
  bool huge_pages_fell_back() const;
  uint64_t metadata_bytes() const { return free_.capacity() / 8; }

  FrameAddress SlabAddress(uint32_t slab) const {
    return {ArenaId(static_cast<uint16_t>(slab / slabs_per_arena_)),
            (slab % slabs_per_arena_) * slab_bytes_};
  }
  std::byte* SlabData(uint32_t slab) const {
    return arenas_[slab / slabs_per_arena_].base() + (slab % slabs_per_arena_) * slab_bytes_;
  }

 private:
  Pool() = default;

  std::vector<Arena> arenas_;  // by id
  uint64_t slab_bytes_ = 0;
  uint32_t slabs_per_arena_ = 0;
  std::vector<bool> free_;
  uint32_t slabs_free_ = 0;
  uint32_t lowest_free_ = 0;  // no slab below it is free
};

}  // namespace oasiskv::server
