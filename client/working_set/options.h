// What every backend checks and derives from a working set's options, and the sum of its counters.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "oasiskv/sequence_source.h"
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

// Of each read of an admission: the longer of late_deadline and 30 s from now.
EntrySource::TimePoint AdmissionDeadline(const WorkingSetOptions& options);

void AddStats(const WorkingSetStats& from, WorkingSetStats* to);

}  // namespace oasiskv
