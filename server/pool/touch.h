// Places a mapping's memory on a NUMA node and makes every page present.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace oasiskv::server {

// Binds memory that was not touched yet to `node`. INVALID_ARGUMENT naming --numa_node when the
// machine has no such node.
absl::Status BindToNumaNode(std::byte* data, uint64_t bytes, int node);

// Writes to every page of fresh (zero) memory from `threads` threads. CAPACITY when the kernel
// cannot give all of it.
absl::Status TouchPages(std::byte* data, uint64_t bytes, int threads);

}  // namespace oasiskv::server
