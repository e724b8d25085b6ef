#include "client/connection/verbs_control.h"

#include <algorithm>
#include <string>

#include "common/log.h"
#include "common/status_macros.h"

namespace oasiskv::client {
namespace {

// Whoever says goodbye waits no longer for a daemon that does not answer.
constexpr Duration kGoodbye = std::chrono::seconds(1);

}  // namespace

absl::StatusOr<fabric::verbs::ServerHello> RpcVerbsControl::Accept(
    const fabric::verbs::ClientHello& hello) {
  OASISKV_ASSIGN_OR_RETURN(const std::string answer,
                           channel_->ConnectFabric(fabric::verbs::Serialize(hello), timeout_));
  return fabric::verbs::ParseServerHello(answer);
}

void RpcVerbsControl::Fence(ConnectionId connection, GrantId grant) {
  if (const absl::Status status = channel_->FenceWriter(connection, grant, timeout_);
      !status.ok()) {
    LogDebug("client", status.message());
  }
}

void RpcVerbsControl::Close(ConnectionId connection) {
  if (const absl::Status status =
          channel_->DisconnectFabric(connection, std::min(timeout_, kGoodbye));
      !status.ok()) {
    LogDebug("client", status.message());
  }
}

}  // namespace oasiskv::client
