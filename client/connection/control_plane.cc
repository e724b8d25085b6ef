#include "client/connection/control_plane.h"

#include <algorithm>

#include "common/log.h"

namespace oasiskv::client {
namespace {

// Whoever says goodbye waits no longer for a daemon that does not answer.
constexpr Duration kGoodbye = std::chrono::seconds(1);

void LogFailure(const absl::Status& status) {
  if (!status.ok()) LogDebug("client", status.message());
}

}  // namespace

absl::StatusOr<std::string> RpcControlPlane::Accept(const std::string& hello) {
  return channel_->ConnectFabric(fabric_, hello, timeout_);
}

void RpcControlPlane::Fence(ConnectionId connection, GrantId grant) {
  LogFailure(channel_->FenceWriter(fabric_, connection, grant, timeout_));
}

void RpcControlPlane::Close(ConnectionId connection) {
  LogFailure(channel_->DisconnectFabric(fabric_, connection, std::min(timeout_, kGoodbye)));
}

}  // namespace oasiskv::client
