// Sums of a working set's counters.
#pragma once

#include "oasiskv/working_set.h"

namespace oasiskv {

void AddStats(const WorkingSetStats& from, WorkingSetStats* to);

}  // namespace oasiskv
