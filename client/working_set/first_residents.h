// Which blocks a new request begins with.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "oasiskv/sequence_source.h"

namespace oasiskv {

// Maps [layer][head][K], -1 for an empty page: the source's first top-K, or the most recent blocks
// where the producer gave none. The best block gets the highest page, so that the worst is evicted
// first. INVALID_ARGUMENT or OUT_OF_RANGE for a first top-K that does not fit the geometry.
absl::StatusOr<std::vector<int32_t>> FirstResidents(const Geometry& geometry,
                                                    uint32_t resident_blocks,
                                                    const EntrySource& source);

}  // namespace oasiskv
