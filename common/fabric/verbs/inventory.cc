#include "common/fabric/verbs/inventory.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/fabric/verbs/device_memory.h"
#include "common/fabric/verbs/port.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

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
  const ProtectionDomain domain(::ibv_alloc_pd(port.context.get()));
  taken.device_memory = domain != nullptr
                            ? ProbeDeviceMemory(port, domain.get())
                            : MakeError(ErrorCode::kUnsupported,
                                        absl::StrCat("ibv_alloc_pd: ", std::strerror(errno)));
  return taken;
}

}  // namespace oasiskv::fabric::verbs
