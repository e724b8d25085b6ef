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
  uint32_t lose_answers = 0, lose_answers_seed = 1;
};

// Thread contract: safe for concurrent use; Serve once.
//
// Listens from construction on, with health NOT_SERVING; until Serve, KvMemory and Admin answer
// DRAINING.
class ControlServer {
 public:
  // `registry` gets the metrics of the calls and must outlive this object. Errors: ALREADY_EXISTS
  // (port taken), INVALID_ARGUMENT; they name --control_address.
  static absl::StatusOr<std::unique_ptr<ControlServer>> Listen(const ControlServerOptions& options,
                                                               prometheus::Registry& registry);
  // Ends waits and watches, gives running calls one second, then cancels them.
  ~ControlServer();

  // With the port that was bound.
  const Address& address() const;
  // From now on calls reach `core` and the endpoints, which must outlive this object, and health is
  // SERVING.
  void Serve(KvCore& core, std::vector<fabric::Endpoint*> endpoints);
  // After Serve: changes health, whether opens and attaches are allowed, and ends waits.
  void SetDraining(bool draining);
  // A few times a second, for watchers.
  void Tick(MonotonicTime now);

 private:
  struct Impl;
  explicit ControlServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace oasiskv::server
