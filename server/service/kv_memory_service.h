// oasiskv.v1.KvMemory over gRPC.
#pragma once

#include <memory>

namespace grpc {
class Service;
}

namespace oasiskv::server {

class AttachWaiters;
class ServiceState;
class SlowCalls;

// The service is safe for concurrent use; what it is given must outlive it.
std::unique_ptr<grpc::Service> MakeKvMemoryService(ServiceState& state, AttachWaiters& waiters,
                                                   SlowCalls& slow);

}  // namespace oasiskv::server
