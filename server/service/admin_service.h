// oasiskv.v1.Admin over gRPC.
#pragma once

#include <functional>
#include <memory>

#include "common/clock.h"

namespace grpc {
class Service;
}

namespace oasiskv::server {

class AttachWaiters;
class ServiceState;

// Thread contract: safe for concurrent use.
class AdminService {
 public:
  // `set_draining` is how the Drain call reaches the whole daemon. `state` and `waiters` must
  // outlive this object.
  AdminService(ServiceState& state, AttachWaiters& waiters, std::function<void(bool)> set_draining);
  // Only after the gRPC server has gone.
  ~AdminService();

  grpc::Service* service();
  // Sends what watchers wait for; called a few times a second.
  void Tick(MonotonicTime now);
  // Ends every WatchCapacity, so that the gRPC server can stop.
  void EndWatches();

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace oasiskv::server
