// The control plane of a verbs connection, over the control channel.
#pragma once

#include <memory>
#include <utility>

#include "client/connection/control.h"
#include "common/clock.h"
#include "common/fabric/verbs/verbs.h"

namespace oasiskv::client {

// Thread contract: safe for concurrent use.
class RpcVerbsControl : public fabric::VerbsControl {
 public:
  // `timeout` of each call.
  RpcVerbsControl(std::shared_ptr<ControlChannel> channel, Duration timeout)
      : channel_(std::move(channel)), timeout_(timeout) {}

  absl::StatusOr<fabric::verbs::ServerHello> Accept(
      const fabric::verbs::ClientHello& hello) override;
  // A fence or a goodbye that is lost costs the daemon some patience and nothing else: it ends the
  // connection by itself.
  void Fence(ConnectionId connection, GrantId grant) override;
  void Close(ConnectionId connection) override;

 private:
  const std::shared_ptr<ControlChannel> channel_;
  const Duration timeout_;
};

}  // namespace oasiskv::client
