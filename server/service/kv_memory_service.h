// oasiskv.v1.KvMemory over gRPC.
#pragma once

#include <memory>

namespace grpc {
class Service;
}

namespace oasiskv::server {

class AttachWaiters;
class ServiceState;

// The service is safe for concurrent use; `state` and `waiters` must outlive it.
std::unique_ptr<grpc::Service> MakeKvMemoryService(ServiceState& state, AttachWaiters& waiters);

}  // namespace oasiskv::server
