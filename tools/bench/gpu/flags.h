// Flags that several operations on a GPU take.
#pragma once

#include <cstdint>

#include "absl/flags/declare.h"
#include "absl/status/statusor.h"
#include "oasiskv/selection.h"

ABSL_DECLARE_FLAG(uint32_t, resident);

namespace oasiskv::bench {

// --summaries. INVALID_ARGUMENT for a type that is not known.
absl::StatusOr<SummaryType> SummariesFromFlag();

}  // namespace oasiskv::bench
