// grpc.health.v1.Health.
#pragma once

#include <memory>

namespace grpc {
class Service;
}

namespace oasiskv::server {

// Thread contract: safe for concurrent use.
//
// gRPC's own implementation says SERVING from the moment that the port listens; this one says
// NOT_SERVING until told otherwise. The daemon as a whole ("") and oasiskv.v1.KvMemory share one
// status; oasiskv.v1.Admin serves from the first SetServing(true) on, also while the daemon drains.
class HealthService {
 public:
  HealthService();
  // Only after the gRPC server has gone.
  ~HealthService();

  grpc::Service* service();
  void SetServing(bool serving);
  // Ends every Watch, so that the gRPC server can stop.
  void EndWatches();

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace oasiskv::server
