// The control plane of data connections, over the control channel.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "client/connection/control.h"
#include "common/clock.h"
#include "common/fabric/fabric.h"

namespace oasiskv::client {

// Thread contract: safe for concurrent use.
//
// Of the connections of one fabric to one daemon.
class RpcControlPlane : public fabric::ControlPlane {
 public:
  // `timeout` of each call.
  RpcControlPlane(std::shared_ptr<ControlChannel> channel, std::string fabric, Duration timeout)
      : channel_(std::move(channel)), fabric_(std::move(fabric)), timeout_(timeout) {}

  absl::StatusOr<std::string> Accept(const std::string& hello) override;
  // A fence or a goodbye that is lost costs the daemon some patience and nothing else: it ends the
  // connection by itself.
  void Fence(ConnectionId connection, GrantId grant) override;
  void Close(ConnectionId connection) override;

 private:
  const std::shared_ptr<ControlChannel> channel_;
  const std::string fabric_;
  const Duration timeout_;
};

}  // namespace oasiskv::client
