#include "server/service/control_server.h"

#include <grpc/impl/codegen/grpc_types.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/service/admin_service.h"
#include "server/service/attach_waiters.h"
#include "server/service/health_service.h"
#include "server/service/kv_memory_service.h"
#include "server/service/rpc_metrics.h"
#include "server/service/rpc_status.h"
#include "server/service/slow_calls.h"

namespace oasiskv::server {
namespace {

// Larger than kMaxMessageBytes, so that a request which is a little too large gets our own error.
constexpr int kMaxReceiveBytes = 16 << 20;
// Only reflection uses threads of its own; a client that keeps its streams open must not use up all
// threads of the machine.
constexpr int kMaxSyncThreads = 8;
// A client's device that cannot be reached keeps one of them busy for seconds.
constexpr size_t kSlowThreads = 4;
constexpr size_t kMaxSlowWaiting = 1024;
constexpr Duration kStopGrace = std::chrono::seconds(1);

}  // namespace

struct ControlServer::Impl {
  Impl(const ControlServerOptions& options, prometheus::Registry& registry)
      : address(options.address),
        rpc_metrics(registry),
        state(rpc_metrics, options.lose_answers, options.lose_answers_seed),
        waiters(std::make_unique<AttachWaiters>(options.max_attach_waiters)),
        admin(state, *waiters, [this](bool draining) { SetDraining(draining); }),
        kv_memory(MakeKvMemoryService(state, *waiters, slow)) {}

  void SetDraining(bool draining) {
    auto core = state.Core();
    if (!core.ok()) return;
    (*core)->SetDraining(draining);
    health.SetServing(!draining);
    waiters->Notify();
  }

  Address address;
  RpcMetrics rpc_metrics;
  ServiceState state;
  std::unique_ptr<AttachWaiters> waiters;
  SlowCalls slow{kSlowThreads, kMaxSlowWaiting};
  HealthService health;
  AdminService admin;
  std::unique_ptr<grpc::Service> kv_memory;
  std::unique_ptr<grpc::Server> server;
};

absl::StatusOr<std::unique_ptr<ControlServer>> ControlServer::Listen(
    const ControlServerOptions& options, prometheus::Registry& registry) {
  static const bool kReflection = [] {
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    return true;
  }();
  static_cast<void>(kReflection);

  // gRPC only reports that it failed; this finds the reason.
  if (const absl::Status status = CheckBindable(options.address); !status.ok()) {
    return Annotate(status, absl::StrCat("--control_address=", options.address.ToString()));
  }
  auto impl = std::make_unique<Impl>(options, registry);
  grpc::ServerBuilder builder;
  // Otherwise two daemons could share a port, and each would get some of the calls.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Clients may send keepalive pings to an idle daemon every few seconds.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
  builder.SetMaxReceiveMessageSize(kMaxReceiveBytes);
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 1);
  grpc::ResourceQuota quota("oasiskvd");
  quota.SetMaxThreads(kMaxSyncThreads);
  builder.SetResourceQuota(quota);
  int port = 0;
  builder.AddListeningPort(options.address.ToString(), grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(impl->health.service());
  builder.RegisterService(impl->admin.service());
  builder.RegisterService(impl->kv_memory.get());
  impl->server = builder.BuildAndStart();
  if (impl->server == nullptr || port == 0) {
    return MakeError(ErrorCode::kAlreadyExists,
                     absl::StrCat("--control_address=", options.address.ToString(),
                                  ": gRPC cannot listen there (see its line in the log); choose "
                                  "another address, or stop the program that uses the port"));
  }
  impl->address.port = static_cast<uint16_t>(port);
  return std::unique_ptr<ControlServer>(new ControlServer(std::move(impl)));
}

ControlServer::ControlServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

ControlServer::~ControlServer() {
  impl_->health.SetServing(false);
  impl_->health.EndWatches();
  impl_->admin.EndWatches();
  // End the waits first, because the server's stop waits for them; the server itself ends calls that
  // arrive in between.
  impl_->waiters->Stop();
  impl_->slow.Stop();
  impl_->server->Shutdown(std::chrono::system_clock::now() + kStopGrace);
  impl_->server->Wait();
}

const Address& ControlServer::address() const { return impl_->address; }

void ControlServer::Serve(KvCore& core, std::vector<fabric::Endpoint*> endpoints) {
  impl_->state.Ready(core, std::move(endpoints));
  impl_->health.SetServing(true);
}

void ControlServer::SetDraining(bool draining) { impl_->SetDraining(draining); }

void ControlServer::Tick(MonotonicTime now) { impl_->admin.Tick(now); }

}  // namespace oasiskv::server
