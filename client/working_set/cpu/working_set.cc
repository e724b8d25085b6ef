// Checks options and makes the backend.
#include "oasiskv/working_set.h"

#include "client/working_set/cpu/cpu_working_set.h"
#include "client/working_set/options.h"
#include "common/status_macros.h"

namespace oasiskv {

absl::StatusOr<std::unique_ptr<WorkingSet>> WorkingSet::Create(const WorkingSetOptions& options) {
  OASISKV_RETURN_IF_ERROR(CheckOptions(options));
  return CpuWorkingSet::Create(options);
}

}  // namespace oasiskv
