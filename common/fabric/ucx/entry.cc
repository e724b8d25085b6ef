// The ucx fabric's entry in the table.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/fabric/registry.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric {
namespace {

std::string Flag(const FabricOptions& options) {
  return absl::StrCat("--ucx_address=", options.ucx.address.ToString());
}

absl::StatusOr<std::unique_ptr<Endpoint>> Serve(const FabricOptions& options, ExportedMemory memory,
                                                GrantAuthority& authority) {
  auto resolved = Resolve(options.ucx.address);
  if (!resolved.ok()) return Annotate(resolved.status(), Flag(options));
  auto endpoint = ServeUcx({.host = resolved->ToAddress().host, .port = options.ucx.address.port},
                           std::move(memory), authority);
  if (!endpoint.ok()) return Annotate(endpoint.status(), Flag(options));
  return endpoint;
}

// A listener that is bound to every interface advertises no host of its own, so the control port's
// host stands in.
absl::StatusOr<std::string> ReachedAt(const ConnectTarget& target) {
  OASISKV_ASSIGN_OR_RETURN(Address ucx, ParseAddress(target.endpoint.address, 0));
  if (ucx.host == "0.0.0.0" || ucx.host == "::" || ucx.host.empty()) {
    OASISKV_ASSIGN_OR_RETURN(const Address control, ParseAddress(target.control_address, 0));
    OASISKV_ASSIGN_OR_RETURN(const SocketAddress resolved, Resolve(control));
    ucx.host = resolved.ToAddress().host;
  }
  return ucx.ToString();
}

absl::StatusOr<std::unique_ptr<Connection>> Connect(const FabricOptions&,
                                                    const ConnectTarget& target) {
  UcxConnectOptions options;
  OASISKV_ASSIGN_OR_RETURN(options.address, ReachedAt(target));
  options.incarnation = target.incarnation;
  options.connect_timeout = target.timeout;
  return ConnectUcx(options);
}

}  // namespace

const Fabric& UcxFabric() {
  static constexpr Fabric kFabric = {
      .name = "ucx",
      .reason = "it goes over any network",
      .port = [](const FabricOptions& options) { return options.ucx.address; },
      .check_serve =
          [](const FabricOptions& options) {
            return Annotate(CheckBindable(options.ucx.address), Flag(options));
          },
      .serve = Serve,
      .check_connect = [](const FabricOptions&) { return absl::OkStatus(); },
      .connect = Connect,
  };
  return kFabric;
}

}  // namespace oasiskv::fabric
