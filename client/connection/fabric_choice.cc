#include "client/connection/fabric_choice.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/fabric/fabric.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::client {
namespace {

// Whoever says goodbye waits no longer for a daemon that does not answer.
constexpr Duration kGoodbye = std::chrono::seconds(1);

// Thread contract: safe for concurrent use.
//
// The control plane of the data connections of one fabric to one daemon, over the control channel.
class RpcControlPlane : public fabric::ControlPlane {
 public:
  // `timeout` of each call.
  RpcControlPlane(std::shared_ptr<ControlChannel> channel, std::string fabric, Duration timeout)
      : channel_(std::move(channel)), fabric_(std::move(fabric)), timeout_(timeout) {}

  absl::StatusOr<std::string> Accept(const std::string& hello) override {
    return channel_->ConnectFabric(fabric_, hello, timeout_);
  }
  // A fence or a goodbye that is lost costs the daemon some patience and nothing else: it ends the
  // connection by itself.
  void Fence(ConnectionId connection, GrantId grant) override {
    Log(channel_->FenceWriter(fabric_, connection, grant, timeout_));
  }
  void Close(ConnectionId connection) override {
    Log(channel_->DisconnectFabric(fabric_, connection, std::min(timeout_, kGoodbye)));
  }

 private:
  static void Log(const absl::Status& failure) {
    if (!failure.ok()) LogDebug("client", failure.message());
  }

  const std::shared_ptr<ControlChannel> channel_;
  const std::string fabric_;
  const Duration timeout_;
};

fabric::FabricOptions FabricOptionsOf(const ClientOptions& options) {
  fabric::FabricOptions out;
  out.verbs.port = {options.verbs_device, options.verbs_port, options.verbs_gid_index};
  out.verbs.peer_patience = options.verbs_peer_timeout;
  return out;
}

}  // namespace

FabricConnector::FabricConnector(const ClientOptions& options,
                                 std::shared_ptr<ControlChannel> control, const DaemonInfo& daemon)
    : address_(options.address),
      asked_(options.fabric),
      rpc_timeout_(options.rpc_timeout),
      options_(FabricOptionsOf(options)),
      control_(std::move(control)),
      daemon_(daemon) {}

const fabric::EndpointInfo* FabricConnector::EndpointOf(const fabric::Fabric& fabric) const {
  for (const fabric::EndpointInfo& endpoint : daemon_.endpoints) {
    if (endpoint.fabric == fabric.name) return &endpoint;
  }
  return nullptr;
}

absl::Status FabricConnector::NotServed(const fabric::Fabric& fabric) const {
  std::vector<std::string> served;
  for (const fabric::EndpointInfo& endpoint : daemon_.endpoints) served.push_back(endpoint.fabric);
  return MakeError(
      ErrorCode::kUnsupported,
      absl::StrCat("the daemon at ", address_, " does not serve ", fabric.name, " but ",
                   served.empty() ? "no fabric" : absl::StrJoin(served, " and "),
                   "; start it with --fabrics naming it, or ask for another"));
}

absl::StatusOr<std::unique_ptr<fabric::Connection>> FabricConnector::Connect(
    const fabric::Fabric& fabric, fabric::Access access, Duration timeout) const {
  // This side first: without a device it does not matter what the daemon has.
  OASISKV_RETURN_IF_ERROR(fabric.check_connect(options_));
  const fabric::EndpointInfo* endpoint = EndpointOf(fabric);
  if (endpoint == nullptr) return NotServed(fabric);
  return fabric.connect(options_, {.endpoint = *endpoint,
                                   .control_address = address_,
                                   .incarnation = daemon_.incarnation,
                                   .access = access,
                                   .timeout = timeout,
                                   .control = std::make_shared<RpcControlPlane>(
                                       control_, std::string(fabric.name), rpc_timeout_)});
}

absl::StatusOr<ChosenFabric> FabricConnector::Choose(Duration timeout) const {
  const MonotonicTime deadline = Clock::Real().Now() + timeout;
  const bool by_name = asked_ != "auto";
  std::vector<std::string> why_not;
  absl::Status last;
  for (const fabric::Fabric* fabric : fabric::Fabrics()) {
    const std::string name(fabric->name);
    if (by_name && name != asked_) continue;
    if (!by_name && EndpointOf(*fabric) == nullptr) {
      why_not.push_back(absl::StrCat("the daemon does not serve ", name));
      last = NotServed(*fabric);
      continue;
    }
    auto made = Connect(*fabric, fabric::Access::kRead,
                        std::max(deadline - Clock::Real().Now(), Duration(Millis(1))));
    if (made.ok()) {
      return ChosenFabric{fabric, *std::move(made),
                          by_name ? absl::StrCat(name, ", as asked")
                          : why_not.empty()
                              ? absl::StrCat(name, ": ", fabric->reason)
                              : absl::StrCat(name, ", because ", absl::StrJoin(why_not, "; "))};
    }
    last = Annotate(made.status(), by_name ? absl::StrCat("fabric ", name, " was asked") : name);
    why_not.push_back(absl::StrCat("no ", name, ": ", made.status().message()));
  }
  if (by_name || ErrorCodeOf(last) != ErrorCode::kUnsupported) return last;
  return MakeError(ErrorCode::kUnsupported,
                   absl::StrCat("no fabric reaches the daemon at ", address_, ": ",
                                absl::StrJoin(why_not, "; ")));
}

absl::StatusOr<std::shared_ptr<fabric::Connection>> FabricConnector::ConnectWriter(
    const fabric::Fabric& fabric) const {
  auto made = Connect(fabric, fabric::Access::kWrite, rpc_timeout_);
  if (!made.ok()) return Annotate(made.status(), absl::StrCat(fabric.name, ", for writing"));
  return std::shared_ptr<fabric::Connection>(*std::move(made));
}

}  // namespace oasiskv::client
