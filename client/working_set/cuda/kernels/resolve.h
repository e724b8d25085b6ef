// What exact mode tells attention.
#pragma once

#include <cstdint>

#include "client/working_set/cuda/kernels/kernels.h"
#include "client/working_set/cuda/kernels/layout.h"

namespace oasiskv::gpu {

struct Resolution {
  int32_t* pages = nullptr;     // [row][head][K]
  uint32_t* missing = nullptr;  // [row]
};
// Where the blocks of mem.predicted are resident. `count_skipped`: those that are not count as
// skipped.
LaunchError FindPages(const Shape& shape, const LayerMemory& mem, const Rows& rows,
                      const Resolution& out, bool count_skipped, SlotCounters* counters,
                      Stream stream);

}  // namespace oasiskv::gpu
