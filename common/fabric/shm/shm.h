// The two halves of the shm fabric and its entry in the table.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/fabric/endpoint.h"
#include "common/fabric/fabric.h"

namespace oasiskv::fabric {

struct Fabric;

struct ShmOptions {
  // Made by the endpoint: mode 0600; 0660 and the group's when allowed_gid is set; 0666 when
  // allowed_uids names anybody, for the credentials of each peer are checked anyway. Empty:
  // DefaultShmSocket.
  std::string socket_path;
  std::vector<uint32_t> allowed_uids;  // besides the daemon's own user and root
  int64_t allowed_gid = -1;            // -1: none
};

// oasiskvd-<control port>.sock in the first of /run/oasiskv, $XDG_RUNTIME_DIR and /tmp that this
// process may write to. Clients learn the path from Describe.
std::string DefaultShmSocket(uint16_t control_port);

// Errors: INVALID_ARGUMENT (path too long for a Unix socket), ALREADY_EXISTS (another daemon serves
// that path), INTERNAL.
absl::StatusOr<std::unique_ptr<Endpoint>> ServeShm(const ShmOptions& options, ExportedMemory memory,
                                                   GrantAuthority& authority);
// Connects to the socket of a daemon on this host. With Access::kWrite it also takes descriptors
// that can be written through. Errors: PEER_LOST (nobody listens), PERMISSION_DENIED (refused by
// peer credentials), STALE (another incarnation).
absl::StatusOr<std::unique_ptr<Connection>> ConnectShm(const std::string& socket_path,
                                                       uint64_t incarnation, Access access);

const Fabric& ShmFabric();

}  // namespace oasiskv::fabric
