// The calls of KvMemory that make and end data connections over the control plane.
#pragma once

#include "absl/status/status.h"

namespace oasiskv::v1 {
class ConnectFabricRequest;
class ConnectFabricResponse;
class DisconnectFabricRequest;
class FenceWriterRequest;
}  // namespace oasiskv::v1

namespace oasiskv::server {

class ServiceState;

// Thread contract: safe for concurrent use.
//
// A caller that knows a connection's id may end it: ids are 64 random bits, which the daemon gives
// only to the connection's own client. Connecting and disconnecting may block.
absl::Status ConnectFabric(const ServiceState& state, const v1::ConnectFabricRequest& request,
                           v1::ConnectFabricResponse& response);
absl::Status FenceWriter(const ServiceState& state, const v1::FenceWriterRequest& request);
absl::Status DisconnectFabric(const ServiceState& state,
                              const v1::DisconnectFabricRequest& request);

}  // namespace oasiskv::server
