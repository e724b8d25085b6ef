// One big mapping of the pool: a memfd, its pages touched, on the NUMA node that was asked for.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "common/mapped_memory.h"
#include "oasiskv/ids.h"

namespace oasiskv::server {

// kOff: pages of the normal size. kPrefer: huge pages, or normal ones (recorded, with a warning)
// where there are too few. kRequire: huge pages, or the daemon does not start.
enum class HugePages { kOff, kPrefer, kRequire };

struct ArenaOptions {
  ArenaId id;
  uint64_t bytes = 0;
  HugePages huge_pages = HugePages::kOff;
  int numa_node = -1;     // -1: wherever the kernel likes
  int touch_threads = 1;  // at least 1
};

// Thread contract: constant after construction; a move-only owner of descriptor and mapping.
class Arena {
 public:
  // Maps and touches `options.bytes` bytes: when it returns every page is there, so that no later
  // access can fail. Errors: CAPACITY (memory, huge pages), INVALID_ARGUMENT (NUMA node, size),
  // naming the flag.
  static absl::StatusOr<Arena> Create(const ArenaOptions& options);

  ArenaId id() const { return id_; }
  std::byte* base() const { return mapping_.data(); }
  uint64_t bytes() const { return mapping_.size(); }
  int fd() const { return fd_.get(); }
  bool huge() const { return huge_; }
  // Huge pages were preferred and could not be had.
  bool fell_back() const { return fell_back_; }

 private:
  Arena() = default;

  ArenaId id_;
  UniqueFd fd_;
  Mapping mapping_;
  bool huge_ = false;
  bool fell_back_ = false;
};

}  // namespace oasiskv::server
