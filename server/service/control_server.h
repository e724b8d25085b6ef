// The daemon's control port: all gRPC services behind one object.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/address.h"
#include "common/clock.h"
#include "server/service/service_state.h"

namespace prometheus {
class Registry;
}

namespace oasiskv::server {

struct ControlServerOptions {
  Address address;
  uint32_t max_attach_waiters = 4096;
};

// Thread contract: safe for concurrent use; Serve once.
//
// Listens from its making on and says NOT_SERVING; KvMemory and Admin answer DRAINING until Serve.
class ControlServer {
 public:
  // `registry` gets the metrics of the calls and must outlive this object. Errors: ALREADY_EXISTS
  // (port taken), INVALID_ARGUMENT; they name --control_address.
  static absl::StatusOr<std::unique_ptr<ControlServer>> Listen(const ControlServerOptions& options,
                                                               prometheus::Registry& registry);
  // Ends waits and watches, gives running calls a second, then cuts them off.
  ~ControlServer();

  // With the port really bound.
  const Address& address() const;
  // From now on calls reach `core` and the endpoints, which must outlive this object; health says
  // SERVING.
  void Serve(KvCore& core, std::vector<fabric::Endpoint*> endpoints);
  // After Serve: readiness, new opens and attaches, waits.
  void SetDraining(bool draining);
  // A few times a second, for watchers.
  void Tick(MonotonicTime now);

 private:
  struct Impl;
  explicit ControlServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace oasiskv::server
