// grpc.health.v1.Health.
#pragma once

#include <memory>

namespace grpc {
class Service;
}

namespace oasiskv::server {

// Thread contract: safe for concurrent use.
//
// gRPC's own implementation answers SERVING as soon as the port listens; this one answers
// NOT_SERVING until SetServing(true). The daemon as a whole ("") and oasiskv.v1.KvMemory have one
// status; oasiskv.v1.Admin serves from the first SetServing(true) on, also while the daemon drains.
class HealthService {
 public:
  HealthService();
  // Only after the gRPC server is destroyed.
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
