// Which data connections a client makes to a daemon, and why.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/connection/control.h"
#include "common/clock.h"
#include "common/fabric/fabric.h"
#include "oasiskv/client.h"

namespace oasiskv::client {

struct ChosenFabric {
  std::shared_ptr<fabric::Connection> reader;
  std::string why;  // for people
};

// Thread contract: safe for concurrent use, constant once made.
//
// Knows one life of one daemon. The control channel is shared with the verbs connections, which end
// through it.
class FabricConnector {
 public:
  FabricConnector(const ClientOptions& options, std::shared_ptr<ControlChannel> control,
                  const DaemonInfo& daemon)
      : options_(options), control_(std::move(control)), daemon_(daemon) {}

  // The fabric that was asked for, or the first of shm, verbs and ucx that reaches the daemon.
  // Errors: UNSUPPORTED naming what the daemon serves and, for verbs, the devices seen; those of
  // connecting.
  absl::StatusOr<ChosenFabric> Choose(Duration timeout) const;
  // A connection for writing beside a reader's of that kind. Ucx has none: it writes through the
  // reader's.
  absl::StatusOr<std::shared_ptr<fabric::Connection>> ConnectWriter(fabric::Kind kind) const;

 private:
  using Made = absl::StatusOr<std::unique_ptr<fabric::Connection>>;
  Made Connect(fabric::Kind kind, Duration timeout) const;
  Made Shm(fabric::Access access) const;
  Made Ucx(Duration timeout) const;
  Made Verbs(fabric::Access access) const;
  bool Serves(fabric::Kind kind) const;
  absl::Status NotServed(fabric::Kind kind) const;

  const ClientOptions options_;
  const std::shared_ptr<ControlChannel> control_;
  const DaemonInfo daemon_;
};

}  // namespace oasiskv::client
