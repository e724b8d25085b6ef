// What all services of one daemon share.
#pragma once

#include <atomic>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/fabric/verbs/verbs.h"
#include "common/log.h"
#include "oasiskv/error.h"
#include "server/core/kv_core.h"
#include "server/service/rpc_metrics.h"

namespace oasiskv::server {

// Where the fabrics listen; empty or null: that fabric is not served.
struct DataAddresses {
  std::string shm_socket;
  std::string ucx_address;
  fabric::VerbsEndpoint* verbs = nullptr;  // outlives the gRPC server
};

// Thread contract: safe for concurrent use.
//
// The control port listens before the pool exists; until Ready every call is refused with DRAINING.
// The core must outlive every call, that is, the gRPC server.
class ServiceState {
 public:
  explicit ServiceState(RpcMetrics& rpc_metrics) : rpc_metrics_(rpc_metrics) {}

  // Once.
  void Ready(KvCore& core, DataAddresses addresses) {
    addresses_ = std::move(addresses);
    core_.store(&core, std::memory_order_release);
  }

  // Error: DRAINING (UNAVAILABLE) before Ready.
  absl::StatusOr<KvCore*> Core() const {
    if (KvCore* core = core_.load(std::memory_order_acquire)) return core;
    return MakeError(ErrorCode::kDraining,
                     "the daemon is starting (it is touching its pool); repeat the call when "
                     "grpc.health.v1.Health answers SERVING");
  }

  // Only after Core() returned one.
  const DataAddresses& addresses() const { return addresses_; }
  RpcMetrics& rpc_metrics() const { return rpc_metrics_; }
  Duration Uptime() const { return Clock::Real().Now() - started_; }

 private:
  RpcMetrics& rpc_metrics_;
  const MonotonicTime started_ = Clock::Real().Now();
  DataAddresses addresses_;  // written before core_ is
  std::atomic<KvCore*> core_{nullptr};
};

}  // namespace oasiskv::server
