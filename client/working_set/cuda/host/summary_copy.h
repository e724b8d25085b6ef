// A request's key summaries on their way into HBM.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "client/working_set/cuda/host/gpu_slot.h"

namespace oasiskv {

// From [block][layer][head] as sources give them to [layer][slot][head][block] on the device, in
// the pool's type; returns the source's bytes when they are there.
absl::StatusOr<uint64_t> CopySummaries(const AdmissionContext& c, EntrySource& source,
                                       uint32_t slot, EntrySource::TimePoint deadline);

}  // namespace oasiskv
