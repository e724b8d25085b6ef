#include "common/fabric/verbs/inventory.h"

#include <utility>

#include "common/fabric/verbs/port.h"
#include "common/status_macros.h"

namespace oasiskv::fabric::verbs {

absl::StatusOr<TakenPort> PortToTake(const VerbsPortOptions& options) {
  OASISKV_ASSIGN_OR_RETURN(const Port port, OpenPort(options));
  OASISKV_ASSIGN_OR_RETURN(GidChoice choice, port.Choose(nullptr));
  TakenPort taken;
  taken.device = port.device;
  taken.port = port.number;
  taken.infiniband = port.infiniband();
  taken.gid = std::move(choice.entry);
  taken.reason = std::move(choice.reason);
  taken.max_registration_bytes = port.limits.max_mr_size;
  return taken;
}

}  // namespace oasiskv::fabric::verbs
