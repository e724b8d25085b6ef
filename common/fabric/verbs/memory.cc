#include "common/fabric/verbs/memory.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric::verbs {
namespace {

std::string LimitText(rlim_t limit) {
  return limit == RLIM_INFINITY ? "unlimited" : absl::StrCat(limit / 1024, " KiB");
}

absl::Status Refused(const Port& port, std::span<std::byte> memory, const Registration& how,
                     int error) {
  const std::string asked =
      absl::StrCat("registering ", how.what, " (", memory.size(), " bytes) with '", port.device,
                   "': ", std::strerror(error));
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  // The kernel says ENOMEM (some drivers EPERM) for the limit; root and CAP_IPC_LOCK are not bound
  // by it.
  if ((error == ENOMEM || error == EPERM) && limit.rlim_cur != RLIM_INFINITY) {
    return MakeError(
        ErrorCode::kCapacity,
        absl::StrCat(asked, "; the limit on locked memory (RLIMIT_MEMLOCK) is ",
                     LimitText(limit.rlim_cur), ", needed are ", how.need_bytes / 1024 + 1,
                     " KiB in all; raise it with 'ulimit -l unlimited', LimitMEMLOCK=infinity in "
                     "the systemd unit, or the "
                     "capability IPC_LOCK in the container"));
  }
  return MakeError(error == ENOMEM ? ErrorCode::kCapacity : ErrorCode::kInternal, asked);
}

}  // namespace

absl::StatusOr<MemoryRegion> RegisterMemory(const Port& port, ibv_pd* domain,
                                            std::span<std::byte> memory, const Registration& how) {
  if (memory.size() > port.limits.max_mr_size) {
    return MakeError(ErrorCode::kCapacity,
                     absl::StrCat(how.what, " has ", memory.size(), " bytes; the RDMA device '",
                                  port.device, "' registers at most ", port.limits.max_mr_size,
                                  " at a time (max_mr_size); make arenas smaller"));
  }
  int error = 0;
  for (const bool relaxed : {true, false}) {
    if (relaxed && !how.relaxed_ordering) continue;
    const unsigned access = how.access | (relaxed ? unsigned{IBV_ACCESS_RELAXED_ORDERING} : 0u);
    MemoryRegion region(ibv_reg_mr(domain, memory.data(), memory.size(), access));
    if (region != nullptr) return region;
    error = errno;
    if (error != EINVAL && error != EOPNOTSUPP)
      break;  // of what a device says to a flag unknown to it
  }
  return Refused(port, memory, how, error);
}

}  // namespace oasiskv::fabric::verbs
