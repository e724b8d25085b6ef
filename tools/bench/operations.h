// The operations of oasis-bench that need a daemon.
#pragma once

#include "absl/status/status.h"

namespace oasiskv::bench {

// CHECKSUM_MISMATCH naming the entry when a byte was wrong.
absl::Status RunFetch();
absl::Status RunAttach();
absl::Status RunPut();

}  // namespace oasiskv::bench
