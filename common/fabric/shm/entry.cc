// The shm fabric's entry in the table.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/fabric/registry.h"
#include "common/mapped_memory.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric {
namespace {

ShmOptions WithPath(const FabricOptions& options) {
  ShmOptions shm = options.shm;
  if (shm.socket_path.empty()) shm.socket_path = DefaultShmSocket(options.control_port);
  return shm;
}

absl::Status CheckSocketPath(const FabricOptions& options) {
  const std::string path = WithPath(options).socket_path;
  const std::string flag = absl::StrCat("--shm_socket=", path);
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "."
                             : slash == 0               ? "/"
                                                        : path.substr(0, slash);
  if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    return MakeError(ErrorCode::kInvalidArgument, absl::StrCat(flag, ": cannot make a socket in ",
                                                               folder, ": ", std::strerror(errno)));
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrCat(flag, ": the path is longer than the ",
                                  sizeof(address.sun_path) - 1, " bytes a Unix socket may have"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  const UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const UniqueFd stream_fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  for (const UniqueFd* candidate : {&fd, &stream_fd}) {
    if (::connect(candidate->get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) ==
        0) {
      return MakeError(ErrorCode::kAlreadyExists,
                       absl::StrCat(flag,
                                    ": another process serves there; choose another path, or "
                                    "end that process"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Endpoint>> Serve(const FabricOptions& options, ExportedMemory memory,
                                                GrantAuthority& authority) {
  const ShmOptions shm = WithPath(options);
  auto endpoint = ServeShm(shm, std::move(memory), authority);
  if (endpoint.ok()) return endpoint;
  return Annotate(endpoint.status(), absl::StrCat("--shm_socket=", shm.socket_path));
}

absl::StatusOr<std::unique_ptr<Connection>> Connect(const FabricOptions&,
                                                    const ConnectTarget& target) {
  return ConnectShm(target.endpoint.address, target.incarnation, target.access);
}

}  // namespace

std::string DefaultShmSocket(uint16_t control_port) {
  const std::string name = absl::StrCat("/oasiskvd-", control_port, ".sock");
  std::vector<std::string> folders = {"/run/oasiskv"};
  if (const char* runtime = std::getenv("XDG_RUNTIME_DIR"); runtime != nullptr && *runtime == '/') {
    folders.push_back(runtime);
  }
  for (const std::string& folder : folders) {
    if (::access(folder.c_str(), W_OK | X_OK) == 0) return folder + name;
  }
  return "/tmp" + name;
}

const Fabric& ShmFabric() {
  static constexpr Fabric kFabric = {
      .name = "shm",
      .reason = "the daemon is on this host",
      .writer_connection = true,
      .check_serve = CheckSocketPath,
      .serve = Serve,
      .check_connect = [](const FabricOptions&) { return absl::OkStatus(); },
      .connect = Connect,
  };
  return kFabric;
}

}  // namespace oasiskv::fabric
