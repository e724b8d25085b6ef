// What all services of one daemon share.
#pragma once

#include <atomic>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/fabric/endpoint.h"
#include "common/log.h"
#include "oasiskv/error.h"
#include "server/core/kv_core.h"
#include "server/service/reply_loss.h"
#include "server/service/rpc_metrics.h"

namespace oasiskv::server {

// Thread contract: safe for concurrent use.
//
// The control port listens before the pool exists; until Ready every call is refused with DRAINING.
// Core and endpoints must outlive every call, that is, the gRPC server.
class ServiceState {
 public:
  ServiceState(RpcMetrics& rpc_metrics, uint32_t lose_answers, uint32_t seed)
      : rpc_metrics_(rpc_metrics), reply_loss_(lose_answers, seed) {}

  // Once.
  void Ready(KvCore& core, std::vector<fabric::Endpoint*> endpoints) {
    endpoints_ = std::move(endpoints);
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
  const std::vector<fabric::Endpoint*>& endpoints() const { return endpoints_; }
  RpcMetrics& rpc_metrics() const { return rpc_metrics_; }
  ReplyLoss& reply_loss() { return reply_loss_; }
  Duration Uptime() const { return Clock::Real().Now() - started_; }

 private:
  RpcMetrics& rpc_metrics_;
  ReplyLoss reply_loss_;
  const MonotonicTime started_ = Clock::Real().Now();
  std::vector<fabric::Endpoint*> endpoints_;  // written before core_ is
  std::atomic<KvCore*> core_{nullptr};
};

}  // namespace oasiskv::server
