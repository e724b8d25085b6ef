// Operations of oasis-gpu-bench on the transfer side; each prints a table. Flags: see --help.
#pragma once

#include "absl/status/status.h"

namespace oasiskv::bench {

// Random entries of registered host memory into pages, beside the copy engine's contiguous rate and
// beside a kernel that is bound by HBM.
absl::Status RunGather();

// Select at several batch sizes.
absl::Status RunSelect();

}  // namespace oasiskv::bench
