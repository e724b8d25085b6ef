// What every backend checks and derives from a working set's options.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "oasiskv/working_set.h"

namespace oasiskv {

// INVALID_ARGUMENT naming the field, its value and the range.
absl::Status CheckOptions(const WorkingSetOptions& options);

// Blocks that a prediction ranks.
uint32_t RankedBlocks(const WorkingSetOptions& options);

// C: blocks that may change per head, layer and step.
uint32_t FetchCap(const WorkingSetOptions& options);

// INVALID_ARGUMENT, GEOMETRY_MISMATCH or CAPACITY unless `source` fits into a slot.
absl::Status CheckSource(const WorkingSetOptions& options, const EntrySource* source);

}  // namespace oasiskv
