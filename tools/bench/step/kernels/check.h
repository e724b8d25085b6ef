// --check: the attention kernels against a float64 reference, on small shapes.
#pragma once

#include "absl/status/status.h"

namespace oasiskv::bench::step {

// Prints a line for each case; an error when one is wrong.
absl::Status CheckAttention();

}  // namespace oasiskv::bench::step
