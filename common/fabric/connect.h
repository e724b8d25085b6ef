// Makes the two halves of each fabric; the only header that names them all.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/fabric/endpoint.h"
#include "common/fabric/fabric.h"
#include "common/fabric/verbs/verbs.h"  // ServeVerbs, ConnectVerbs

namespace oasiskv::fabric {

struct ShmEndpointOptions {
  // Made by the endpoint: mode 0600; 0660 and the group's when allowed_gid is set; 0666 when
  // allowed_uids names anybody, for the credentials of each peer are checked anyway.
  std::string socket_path;
  std::vector<uint32_t> allowed_uids;  // besides the daemon's own user and root
  int64_t allowed_gid = -1;            // -1: none
};
// Errors: INVALID_ARGUMENT (path too long for a Unix socket), ALREADY_EXISTS (another daemon serves
// that path), INTERNAL.
absl::StatusOr<std::unique_ptr<Endpoint>> ServeShm(const ShmEndpointOptions& options,
                                                   ExportedMemory memory,
                                                   GrantAuthority& authority);
// Connects to the socket of a daemon on this host. `writer`: also take descriptors that can be
// written through. Errors: PEER_LOST (nobody listens), PERMISSION_DENIED (refused by peer
// credentials), STALE (another incarnation).
absl::StatusOr<std::unique_ptr<Connection>> ConnectShm(const std::string& socket_path,
                                                       uint64_t incarnation, Access access);

struct UcxEndpointOptions {
  std::string host = "0.0.0.0";  // numeric address, IPv4 or IPv6
  uint16_t port = 0;             // 0: any; address() tells
  Duration reply_timeout =
      std::chrono::seconds(10);  // a peer that takes no data for so long is disconnected
};
absl::StatusOr<std::unique_ptr<Endpoint>> ServeUcx(const UcxEndpointOptions& options,
                                                   ExportedMemory memory,
                                                   GrantAuthority& authority);
struct UcxConnectOptions {
  std::string address;  // host:port, [v6]:port
  uint64_t incarnation = 0;
  Duration connect_timeout = std::chrono::seconds(5);
  uint64_t window_bytes =
      uint64_t{4} << 20;  // data asked for and not yet arrived, over all batches of the connection
};
absl::StatusOr<std::unique_ptr<Connection>> ConnectUcx(const UcxConnectOptions& options);

}  // namespace oasiskv::fabric
