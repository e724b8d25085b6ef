// Brings a request into its slot.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "client/working_set/cuda/host/gpu_slot.h"

namespace oasiskv {

// Fills slot `slot` from `source`, as WorkingSet::Admit does; returns when the device has it all.
// After an error the slot is free, as before.
absl::StatusOr<std::unique_ptr<GpuSlot>> AdmitToSlot(const AdmissionContext& context,
                                                     std::shared_ptr<EntrySource> source,
                                                     uint32_t slot);

}  // namespace oasiskv
