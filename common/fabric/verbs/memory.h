// Registering memory with a device, and saying what is wrong when it refuses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/fabric/verbs/handles.h"
#include "common/fabric/verbs/port.h"

namespace oasiskv::fabric::verbs {

struct Registration {
  absl::string_view what;  // for messages: "arena 3 for readers"
  unsigned access = 0;     // IBV_ACCESS_*
  bool relaxed_ordering = true;
  uint64_t need_bytes = 0;  // all that this process will have registered in the end, for messages
};

// Relaxed ordering lets the device write the bytes of one transfer in any order; some hosts reach a
// fraction of the line rate without. It is asked for where only a completion is trusted, and done
// without where the device knows it not. Errors: CAPACITY (the limit on locked memory: limit, need,
// fix; or max_mr_size), INTERNAL.
absl::StatusOr<MemoryRegion> RegisterMemory(const Port& port, ibv_pd* domain,
                                            std::span<std::byte> memory, const Registration& how);

}  // namespace oasiskv::fabric::verbs
