#include "server/pool/pool.h"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"
#include "oasiskv/geometry.h"

namespace oasiskv::server {
namespace {

absl::Status Bad(const std::string& text) { return MakeError(ErrorCode::kInvalidArgument, text); }

absl::Status Check(const PoolOptions& o) {
  const uint64_t page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t unit = std::max<uint64_t>(page, Geometry::kFrameAlignment);
  if (o.slab_bytes == 0 || o.slab_bytes % unit != 0) {
    return Bad(
        absl::StrFormat("--slab_bytes=%d must be a multiple of %d and not 0", o.slab_bytes, unit));
  }
  if (o.pool_bytes == 0 || o.pool_bytes % o.slab_bytes != 0) {
    return Bad(
        absl::StrFormat("--pool_bytes=%d must be a multiple of --slab_bytes=%d and not 0; "
                        "the nearest that fits is %d",
                        o.pool_bytes, o.slab_bytes,
                        std::max(o.pool_bytes / o.slab_bytes, uint64_t{1}) * o.slab_bytes));
  }
  if (o.arena_bytes != 0 &&
      (o.arena_bytes % o.slab_bytes != 0 || o.pool_bytes % o.arena_bytes != 0)) {
    return Bad(
        absl::StrFormat("--arena_bytes=%d must be a multiple of --slab_bytes=%d and divide "
                        "--pool_bytes=%d (0: one arena)",
                        o.arena_bytes, o.slab_bytes, o.pool_bytes));
  }
  const uint64_t arena_bytes = o.arena_bytes == 0 ? o.pool_bytes : o.arena_bytes;
  if (arena_bytes > uint64_t{1} << FrameAddress::kOffsetBits) {
    return Bad(
        absl::StrFormat("an arena of %d bytes is too large, the most is 2^%d; set "
                        "--arena_bytes",
                        arena_bytes, FrameAddress::kOffsetBits));
  }
  if (o.pool_bytes / arena_bytes > std::numeric_limits<uint16_t>::max()) {
    return Bad(absl::StrFormat("--arena_bytes=%d makes %d arenas, the most is %d", arena_bytes,
                               o.pool_bytes / arena_bytes, std::numeric_limits<uint16_t>::max()));
  }
  if (o.pool_bytes / o.slab_bytes > std::numeric_limits<uint32_t>::max() / 2) {
    return Bad(absl::StrFormat("--slab_bytes=%d makes %d slabs, too many; raise it", o.slab_bytes,
                               o.pool_bytes / o.slab_bytes));
  }
  if (o.touch_threads < 0 || o.touch_threads > 1024) {
    return Bad(absl::StrFormat("--touch_threads=%d must be between 0 and 1024", o.touch_threads));
  }
  if (o.numa_node < -1) {
    return Bad(absl::StrFormat("--numa_node=%d must be -1 (any) or a node's number", o.numa_node));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Pool>> Pool::Create(const PoolOptions& options) {
  OASISKV_RETURN_IF_ERROR(Check(options));
  std::unique_ptr<Pool> pool(new Pool);
  const uint64_t arena_bytes = options.arena_bytes == 0 ? options.pool_bytes : options.arena_bytes;
  const uint64_t arenas = options.pool_bytes / arena_bytes;
  const int threads = options.touch_threads > 0
                          ? options.touch_threads
                          : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  pool->slab_bytes_ = options.slab_bytes;
  pool->slabs_per_arena_ = static_cast<uint32_t>(arena_bytes / options.slab_bytes);
  for (uint64_t i = 0; i < arenas; ++i) {
    OASISKV_ASSIGN_OR_RETURN(Arena arena, Arena::Create({.id = ArenaId(static_cast<uint16_t>(i)),
                                                         .bytes = arena_bytes,
                                                         .huge_pages = options.huge_pages,
                                                         .numa_node = options.numa_node,
                                                         .touch_threads = threads}));
    pool->arenas_.push_back(std::move(arena));
  }
  pool->free_.assign(options.pool_bytes / options.slab_bytes, true);
  pool->slabs_free_ = pool->slabs_total();
  return pool;
}

std::optional<uint32_t> Pool::Take(uint32_t span) {
  if (span == 0 || span > slabs_per_arena_ || span > slabs_free_) return std::nullopt;
  uint32_t run = 0;
  for (uint32_t slab = lowest_free_; slab < slabs_total(); ++slab) {
    if (slab % slabs_per_arena_ == 0) run = 0;  // a run never crosses into the next arena
    run = free_[slab] ? run + 1 : 0;
    if (run < span) continue;
    const uint32_t first = slab + 1 - span;
    for (uint32_t s = first; s <= slab; ++s) free_[s] = false;
    slabs_free_ -= span;
    while (lowest_free_ < slabs_total() && !free_[lowest_free_]) ++lowest_free_;
    return first;
  }
  return std::nullopt;
}

void Pool::Give(uint32_t first, uint32_t span) {
  for (uint32_t s = first; s < first + span; ++s) free_[s] = true;
  slabs_free_ += span;
  lowest_free_ = std::min(lowest_free_, first);
}

bool Pool::huge_pages() const {
  return std::all_of(arenas_.begin(), arenas_.end(), [](const Arena& a) { return a.huge(); });
}

bool Pool::huge_pages_fell_back() const {
  return std::any_of(arenas_.begin(), arenas_.end(), [](const Arena& a) { return a.fell_back(); });
}

}  // namespace oasiskv::server
