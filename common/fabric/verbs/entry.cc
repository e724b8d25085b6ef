// The verbs fabric's entry in the table.
#include <utility>

#include "common/fabric/registry.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric {
namespace {

constexpr char kFlag[] = "--fabrics names verbs";

absl::StatusOr<std::unique_ptr<Endpoint>> Serve(const FabricOptions& options, ExportedMemory memory,
                                                GrantAuthority& authority) {
  auto endpoint = ServeVerbs({.port = options.verbs.port}, std::move(memory), authority);
  if (!endpoint.ok()) return Annotate(endpoint.status(), kFlag);
  return endpoint;
}

absl::StatusOr<std::unique_ptr<Connection>> Connect(const FabricOptions& options,
                                                    const ConnectTarget& target) {
  VerbsConnectOptions verbs;
  verbs.port = options.verbs.port;
  verbs.incarnation = target.incarnation;
  verbs.access = target.access;
  if (options.verbs.peer_patience > Duration(0)) verbs.peer_patience = options.verbs.peer_patience;
  return ConnectVerbs(verbs, target.control);
}

}  // namespace

const Fabric& VerbsFabric() {
  static constexpr Fabric kFabric = {
      .name = "verbs",
      .reason = "both sides have an RDMA device",
      .writer_connection = true,
      .check_serve =
          [](const FabricOptions& options) {
            return Annotate(CheckVerbsPort(options.verbs.port), kFlag);
          },
      .serve = Serve,
      .check_connect =
          [](const FabricOptions& options) { return CheckVerbsPort(options.verbs.port); },
      .connect = Connect,
  };
  return kFabric;
}

}  // namespace oasiskv::fabric
