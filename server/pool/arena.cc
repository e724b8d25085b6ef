#include "server/pool/arena.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"
#include "server/pool/touch.h"

namespace oasiskv::server {
namespace {

struct Memory {
  UniqueFd fd;
  Mapping mapping;
};

absl::StatusOr<Memory> Map(ArenaId id, uint64_t bytes, PageKind pages) {
  Memory memory;
  OASISKV_ASSIGN_OR_RETURN(memory.fd,
                           CreateMemfd(absl::StrCat("oasiskv-arena-", id.value()), bytes, pages));
  OASISKV_ASSIGN_OR_RETURN(memory.mapping,
                           Mapping::Map(memory.fd.get(), bytes, Protection::kReadWrite));
  return memory;
}

}  // namespace

absl::StatusOr<Arena> Arena::Create(const ArenaOptions& options) {
  Arena arena;
  arena.id_ = options.id;
  Memory memory;
  if (options.huge_pages != HugePages::kOff) {
    absl::StatusOr<Memory> huge = Map(options.id, options.bytes, PageKind::kHuge);
    if (huge.ok()) {
      memory = *std::move(huge);
      arena.huge_ = true;
    } else if (options.huge_pages == HugePages::kRequire) {
      return Annotate(huge.status(), absl::StrFormat("arena %d of %d bytes (--huge_pages=require)",
                                                     options.id.value(), options.bytes));
    } else {
      arena.fell_back_ = true;
      LogWarning(
          "pool",
          absl::StrFormat("arena %d of %d bytes uses normal pages (--huge_pages=prefer): %s",
                          options.id.value(), options.bytes, std::string(huge.status().message())));
    }
  }
  if (!arena.huge_) {
    absl::StatusOr<Memory> normal = Map(options.id, options.bytes, PageKind::kNormal);
    if (!normal.ok()) {
      return Annotate(normal.status(),
                      absl::StrFormat("arena %d of %d bytes (lower --pool_bytes or free memory)",
                                      options.id.value(), options.bytes));
    }
    memory = *std::move(normal);
  }
  arena.fd_ = std::move(memory.fd);
  arena.mapping_ = std::move(memory.mapping);
  if (options.numa_node != -1) {
    OASISKV_RETURN_IF_ERROR(BindToNumaNode(arena.base(), arena.bytes(), options.numa_node));
  }
  OASISKV_RETURN_IF_ERROR(TouchPages(arena.base(), arena.bytes(), options.touch_threads));
  return arena;
}

}  // namespace oasiskv::server
