// Times of GPU work: replays of a CUDA graph between two events.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

#include "absl/status/statusor.h"
#include "tools/bench/samples.h"

namespace oasiskv::bench {

// Captures what `enqueue` puts on the stream it is given and replays it `repeats` times after two
// warm-ups; seconds of one replay. `enqueue` returns null, or the text of an error.
absl::StatusOr<Spread> TimeGraph(const std::function<const char*(cudaStream_t)>& enqueue,
                                 int repeats);

}  // namespace oasiskv::bench
