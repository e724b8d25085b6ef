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
  // The Drain call reaches the whole daemon through `set_draining`. `state` and `waiters` must
  // outlive this object.
  AdminService(ServiceState& state, AttachWaiters& waiters, std::function<void(bool)> set_draining);
  // Only after the gRPC server is destroyed.
  ~AdminService();

  grpc::Service* service();
  // Sends changes to the watchers; called a few times a second.
  void Tick(MonotonicTime now);
  // Ends every WatchCapacity, so that the gRPC server can stop.
  void EndWatches();

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace oasiskv::server
