// What a request brings with it: summaries, a first working set and the local block.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "client/working_set/cpu/layer_state.h"
#include "client/working_set/cpu/pages.h"
#include "client/working_set/cpu/staging.h"
#include "oasiskv/sequence_source.h"

namespace oasiskv {

// Fills a free slot from `source`; `states` are the slot's, by layer. The first top-K decides the
// residents, or the most recent blocks where the producer gave none; the best block gets the
// highest page, so that the worst is evicted first. Where the source keeps what it fetches, every
// block of the union over heads is pulled for all heads. Returns the bytes pulled. After an error
// the states are cleared. Each read has the longer of late_deadline and 30 s.
absl::StatusOr<uint64_t> Admission(const WorkingSetContext& context, EntrySource& source,
                                   std::span<LayerState> states, StagingPool* staging);

}  // namespace oasiskv
