// What every part of one working set shares.
#pragma once

#include <cstdint>

#include "client/working_set/cpu/pages.h"
#include "oasiskv/working_set.h"

namespace oasiskv {

// Thread contract: constant after construction (the pool's bytes follow LayerState's rules).
struct WorkingSetContext {
  WorkingSetOptions options;
  uint32_t group = 1;  // query heads of one KV head
  uint32_t cap = 0;    // C
  PagePool pool;

  uint32_t heads() const { return options.geometry.kv_heads; }
  uint32_t resident() const { return options.resident_blocks; }
};

}  // namespace oasiskv
