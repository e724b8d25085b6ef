#include "common/fabric/verbs/device_memory.h"

#include <dlfcn.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric::verbs {
namespace {

using RegisterFunction = ibv_mr* (*)(ibv_pd*, uint64_t offset, size_t length, uint64_t iova, int fd,
                                     int access);

// Asked for by name, so that the program also runs with a library that is older than the call.
RegisterFunction Find() {
  return reinterpret_cast<RegisterFunction>(::dlsym(RTLD_DEFAULT, "ibv_reg_dmabuf_mr"));
}

bool SaysUnsupported(int error) { return error == EOPNOTSUPP || error == EPROTONOSUPPORT; }

absl::Status NoLibrary() {
  return MakeError(ErrorCode::kUnsupported,
                   "the verbs library has no ibv_reg_dmabuf_mr; install rdma-core 34 or later "
                   "(Debian: libibverbs1)");
}

absl::Status NoDriver(const Port& port, int error) {
  return MakeError(ErrorCode::kUnsupported,
                   absl::StrCat("kernel or driver of the RDMA device '", port.device,
                                "' registers no dma-buf memory: ", std::strerror(error),
                                "; it takes Linux 5.12 or later and a driver that can (mlx5 with "
                                "CONFIG_DMABUF_MOVE_NOTIFY, irdma, ...)"));
}

}  // namespace

absl::Status ProbeDeviceMemory(const Port& port, ibv_pd* domain) {
  const RegisterFunction reg = Find();
  if (reg == nullptr) return NoLibrary();
  // No descriptor at all: where dma-bufs are known, that is what is wrong with it.
  const MemoryRegion none(reg(domain, 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE));
  const int error = errno;
  if (none != nullptr || error == EBADF) return absl::OkStatus();
  return NoDriver(port, error);
}

absl::StatusOr<MemoryRegion> RegisterDeviceMemory(const Port& port, ibv_pd* domain,
                                                  const DeviceBuffer& memory) {
  if (memory.dmabuf_fd < 0 || memory.bytes == 0) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        absl::StrCat("device memory of ", memory.bytes, " bytes with the dma-buf descriptor ",
                     memory.dmabuf_fd,
                     "; the GPU's driver gives one for an allocation "
                     "(cuMemGetHandleForAddressRange; hsa_amd_portable_export_dmabuf)"));
  }
  OASISKV_RETURN_IF_ERROR(ProbeDeviceMemory(port, domain));
  MemoryRegion region(Find()(domain, memory.offset, memory.bytes, memory.address, memory.dmabuf_fd,
                             IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING));
  if (region != nullptr) return region;
  const int error = errno;
  if (SaysUnsupported(error)) return NoDriver(port, error);
  const bool no_dmabuf = error == EBADF || error == EINVAL;
  return MakeError(
      no_dmabuf         ? ErrorCode::kUnsupported
      : error == ENOMEM ? ErrorCode::kCapacity
                        : ErrorCode::kInternal,
      absl::StrCat("registering ", memory.bytes, " bytes of device memory from ", memory.offset,
                   " of the dma-buf ", memory.dmabuf_fd, " with '", port.device,
                   "': ", std::strerror(error),
                   no_dmabuf ? "; the descriptor must be an open dma-buf that holds these bytes, "
                               "offset and address alike within their pages"
                             : ""));
}

}  // namespace oasiskv::fabric::verbs
