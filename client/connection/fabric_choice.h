// Which data connections a client makes to a daemon, and why.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "client/connection/control.h"
#include "common/clock.h"
#include "common/fabric/registry.h"
#include "oasiskv/client.h"

namespace oasiskv::client {

struct ChosenFabric {
  const fabric::Fabric* fabric = nullptr;
  std::shared_ptr<fabric::Connection> reader;
  std::string why;  // for people
};

// Thread contract: safe for concurrent use, constant once made.
//
// Knows one life of one daemon. The control channel is shared with those connections that are made
// and end through it.
class FabricConnector {
 public:
  FabricConnector(const ClientOptions& options, std::shared_ptr<ControlChannel> control,
                  const DaemonInfo& daemon);

  // The fabric that was asked for, or the first of the table that reaches the daemon. Errors:
  // UNSUPPORTED naming what the daemon serves and, for verbs, the devices seen; those of
  // connecting.
  absl::StatusOr<ChosenFabric> Choose(Duration timeout) const;
  // A connection for writing, of a fabric whose writers have one of their own.
  absl::StatusOr<std::shared_ptr<fabric::Connection>> ConnectWriter(
      const fabric::Fabric& fabric) const;

 private:
  absl::StatusOr<std::unique_ptr<fabric::Connection>> Connect(const fabric::Fabric& fabric,
                                                              fabric::Access access,
                                                              Duration timeout) const;
  const fabric::EndpointInfo* EndpointOf(const fabric::Fabric& fabric) const;
  absl::Status NotServed(const fabric::Fabric& fabric) const;

  const std::string address_;
  const std::string asked_;  // a fabric's name, or "auto"
  const Duration rpc_timeout_;
  const fabric::FabricOptions options_;
  const std::shared_ptr<ControlChannel> control_;
  const DaemonInfo daemon_;
};

}  // namespace oasiskv::client
