// The most that a daemon may be told to allow; the one place of these numbers.
#pragma once

#include <cstdint>

namespace oasiskv::server {

constexpr uint32_t kMostGrants = uint32_t{1} << 24;
constexpr uint32_t kMostSequences = uint32_t{1} << 24;
// Of one sequence: an Attach answer lists every frame in 8 bytes and must stay below 4 MiB.
constexpr uint32_t kMostBlocks = 262144;
constexpr uint64_t kMostBlobBytes = uint64_t{2} << 20;  // of one sequence, in the same answer

}  // namespace oasiskv::server
