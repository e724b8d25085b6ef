// The two halves of the ucx fabric and its entry in the table. No UCX header.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/address.h"
#include "common/clock.h"
#include "common/fabric/endpoint.h"
#include "common/fabric/fabric.h"

namespace oasiskv::fabric {

struct Fabric;

struct UcxOptions {
  Address address{"127.0.0.1", 7402};  // where the daemon listens; port 0: any
};

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

const Fabric& UcxFabric();

}  // namespace oasiskv::fabric
