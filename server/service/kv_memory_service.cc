#include "server/service/kv_memory_service.h"

#include <string>
#include <utility>
#include <vector>

#include "common/log.h"
#include "common/status_macros.h"
#include "common/version.h"
#include "common/wire/convert.h"
#include "oasiskv/v1/kv_memory.grpc.pb.h"
#include "server/service/attach_waiters.h"
#include "server/service/fabric_calls.h"
#include "server/service/service_state.h"
#include "server/service/translate.h"
#include "server/service/unary_call.h"

namespace oasiskv::server {
namespace {

constexpr int kMaxGrantsPerCall = 65536;
constexpr int kMaxSequencesPerCall = 65536;

uint64_t Millis64(Duration duration) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(duration).count());
}

absl::StatusOr<std::vector<GrantKey>> ToGrantKeys(
    const google::protobuf::RepeatedPtrField<v1::GrantRef>& grants) {
  if (grants.size() > kMaxGrantsPerCall) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrCat("grants has ", grants.size(), " items; at most ",
                                  kMaxGrantsPerCall, " are allowed in one call"));
  }
  std::vector<GrantKey> out;
  out.reserve(grants.size());
  for (const v1::GrantRef& grant : grants) out.push_back(ToGrantKey(grant));
  return out;
}

// A waiting call keeps its request, so memory must suffice for --max_attach_waiters of this size. A
// request with the longest names allowed has a quarter of it.
absl::Status CheckAttachSize(const v1::AttachRequest& request) {
  constexpr size_t kMost = 8 << 10;
  const size_t bytes = request.ByteSizeLong();
  if (bytes <= kMost) return absl::OkStatus();
  return MakeError(ErrorCode::kInvalidArgument,
                   absl::StrCat("the attach request has ", bytes, " bytes; at most ", kMost,
                                " are allowed, and at most 256 for each of name, model, revision "
                                "and tenant"));
}

// Thread contract: driven by gRPC and by AttachWaiters; exactly one of them ends the call.
//
// One Attach call, from its arrival to its answer; deletes itself.
class AttachCall : public grpc::ServerUnaryReactor {
 public:
  AttachCall(ServiceState& state, AttachWaiters& waiters, grpc::CallbackServerContext& context,
             const v1::AttachRequest& request, v1::AttachResponse& response)
      : state_(state),
        waiters_(waiters),
        context_(context),
        request_(request),
        response_(response) {}

  // Called before gRPC has the object, so that no callback runs at the same time.
  void Start() {
    if (absl::Status status = Begin(); !status.ok()) {
      End(status);
    } else if (waiter_ == 0) {
      End(absl::OkStatus());
    }
  }

  void OnCancel() override {
    if (waiter_ != 0 && waiters_.Cancel(waiter_)) {
      End(MakeError(ErrorCode::kCancelled, "the caller cancelled the wait for the seal"));
    }
  }
  void OnDone() override { delete this; }

 private:
  // OK: attached, or waiter_ is set.
  absl::Status Begin() {
    OASISKV_RETURN_IF_ERROR(CheckAttachSize(request_));
    OASISKV_ASSIGN_OR_RETURN(core_, state_.Core());
    OASISKV_ASSIGN_OR_RETURN(spec_, ToAttachSpec(request_));
    spec_.holder = context_.peer();
    OASISKV_ASSIGN_OR_RETURN(const Duration wait,
                             ToDuration("wait_for_seal_ms", request_.wait_for_seal_ms()));
    absl::Status status = Attach();
    const ErrorCode code = ErrorCodeOf(status);
    if (wait == Duration(0) || (code != ErrorCode::kNotFound && code != ErrorCode::kNotSealed)) {
      return status;
    }
    OASISKV_ASSIGN_OR_RETURN(
        waiter_, waiters_.Add(*core_, spec_.name, spec_.identity,
                              code == ErrorCode::kNotSealed ? AttachWaiters::Found::kOpen
                                                            : AttachWaiters::Found::kNothing,
                              start_ + wait, [this](const absl::Status& sealed) {
                                End(sealed.ok() ? Attach() : sealed);
                              }));
    return absl::OkStatus();
  }

  absl::Status Attach() {
    OASISKV_ASSIGN_OR_RETURN(AttachResult result, core_->Attach(spec_));
    const GrantKey grant{result.grant.id, result.grant.epoch};
    ToMessage(std::move(result), response_);
    absl::Status fits = CheckMessageSize(response_, "attach answer");
    if (fits.ok()) return fits;
    response_.Clear();
    OASISKV_RETURN_IF_ERROR(core_->Release({&grant, 1}, {}, spec_.identity).status());
    return fits;
  }

  void End(const absl::Status& status) {
    state_.rpc_metrics().Observe("KvMemory/Attach", status, Clock::Real().Now() - start_);
    Finish(ToGrpc(status, context_));
  }

  ServiceState& state_;
  AttachWaiters& waiters_;
  grpc::CallbackServerContext& context_;
  const v1::AttachRequest& request_;
  v1::AttachResponse& response_;
  const MonotonicTime start_ = Clock::Real().Now();
  KvCore* core_ = nullptr;
  AttachSpec spec_;
  uint64_t waiter_ = 0;  // set before Start returns
};

class KvMemoryService final : public v1::KvMemory::CallbackService {
 public:
  KvMemoryService(ServiceState& state, AttachWaiters& waiters, SlowCalls& slow)
      : state_(state), waiters_(waiters), slow_(slow) {}

  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context,
                                     const v1::DescribeRequest* request,
                                     v1::DescribeResponse* response) override {
    return RunUnary(state_, "KvMemory/Describe", context, request, [&](KvCore& core) {
      response->set_daemon_version(Version());
      response->set_incarnation(core.incarnation());
      for (const fabric::Endpoint* endpoint : state_.endpoints()) {
        v1::Endpoint& out = *response->add_endpoints();
        out.set_fabric(std::string(endpoint->fabric()));
        out.set_address(endpoint->address());
        out.set_description(endpoint->Describe());
      }
      response->set_lease_ms(Millis64(core.options().default_lease));
      response->set_max_lease_ms(Millis64(core.options().max_lease));
      response->set_max_blob_bytes(core.options().max_blob_bytes);
      response->set_draining(core.draining());
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* Open(grpc::CallbackServerContext* context,
                                 const v1::OpenRequest* request,
                                 v1::OpenResponse* response) override {
    return RunUnary(state_, "KvMemory/Open", context, request, [&](KvCore& core) -> absl::Status {
      OASISKV_ASSIGN_OR_RETURN(OpenSpec spec, ToOpenSpec(*request));
      spec.holder = context->peer();
      OASISKV_ASSIGN_OR_RETURN(const OpenResult result, core.Open(spec));
      ToMessage(result, *response);
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* Extend(grpc::CallbackServerContext* context,
                                   const v1::ExtendRequest* request,
                                   v1::ExtendResponse* response) override {
    return RunUnary(state_, "KvMemory/Extend", context, request, [&](KvCore& core) -> absl::Status {
      const GrantKey writer{GrantId(request->grant_id()), Epoch(request->epoch())};
      OASISKV_ASSIGN_OR_RETURN(const ExtendResult result, core.Extend(writer, request->blocks()));
      ToMessage(result, *response);
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* Commit(grpc::CallbackServerContext* context,
                                   const v1::CommitRequest* request, v1::CommitResponse*) override {
    return RunUnary(state_, "KvMemory/Commit", context, request, [&](KvCore& core) {
      const GrantKey writer{GrantId(request->grant_id()), Epoch(request->epoch())};
      const std::vector<LayerBlocks> ranges = ToLayerBlocks(*request);
      return core.Commit(
          writer, ranges,
          {request->checksums().data(), static_cast<size_t>(request->checksums_size())});
    });
  }

  grpc::ServerUnaryReactor* Seal(grpc::CallbackServerContext* context,
                                 const v1::SealRequest* request, v1::SealResponse*) override {
    return RunUnary(state_, "KvMemory/Seal", context, request, [&](KvCore& core) -> absl::Status {
      const GrantKey writer{GrantId(request->grant_id()), Epoch(request->epoch())};
      OASISKV_RETURN_IF_ERROR(core.Seal(writer, request->token_count(),
                                        {request->first_topk_k(), request->first_topk()},
                                        request->blob()));
      waiters_.Notify();
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* Attach(grpc::CallbackServerContext* context,
                                   const v1::AttachRequest* request,
                                   v1::AttachResponse* response) override {
    auto* call = new AttachCall(state_, waiters_, *context, *request, *response);
    call->Start();
    return call;
  }

  grpc::ServerUnaryReactor* Renew(grpc::CallbackServerContext* context,
                                  const v1::RenewRequest* request,
                                  v1::RenewResponse* response) override {
    return RunUnary(state_, "KvMemory/Renew", context, request, [&](KvCore& core) -> absl::Status {
      OASISKV_ASSIGN_OR_RETURN(const std::vector<GrantKey> grants, ToGrantKeys(request->grants()));
      OASISKV_ASSIGN_OR_RETURN(const Duration lease, ToDuration("lease_ms", request->lease_ms()));
      OASISKV_ASSIGN_OR_RETURN(const RenewResult result, core.Renew(grants, lease));
      ToMessage(result, core.incarnation(), *response);
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* Release(grpc::CallbackServerContext* context,
                                    const v1::ReleaseRequest* request,
                                    v1::ReleaseResponse* response) override {
    return RunUnary(
        state_, "KvMemory/Release", context, request, [&](KvCore& core) -> absl::Status {
          OASISKV_ASSIGN_OR_RETURN(const std::vector<GrantKey> grants,
                                   ToGrantKeys(request->grants()));
          if (request->sequences_size() > kMaxSequencesPerCall) {
            return MakeError(
                ErrorCode::kInvalidArgument,
                absl::StrCat("sequences has ", request->sequences_size(), " items; at most ",
                             kMaxSequencesPerCall, " are allowed in one call"));
          }
          const std::vector<std::string> sequences(request->sequences().begin(),
                                                   request->sequences().end());
          OASISKV_ASSIGN_OR_RETURN(
              const ReleaseResult result,
              core.Release(grants, sequences, wire::FromMessage(request->identity())));
          response->set_grants_released(result.grants);
          response->set_sequences_released(result.sequences);
          waiters_.Notify();  // a writer that gives up its grant ends its sequence
          return absl::OkStatus();
        });
  }

  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const v1::AbortRequest* request,
                                  v1::AbortResponse* response) override {
    return RunUnary(state_, "KvMemory/Abort", context, request, [&](KvCore& core) -> absl::Status {
      OASISKV_ASSIGN_OR_RETURN(const uint32_t revoked,
                               core.Abort(request->name(), wire::FromMessage(request->identity())));
      response->set_grants_revoked(revoked);
      if (revoked > 0) waiters_.Notify();
      if (!request->reason().empty() && aborts_.Pass()) {
        constexpr size_t kShownBytes = 256;
        LogInfo("sequence",
                absl::StrCat("\"", request->name(), "\" is aborted by ", context->peer(), ": ",
                             request->reason().substr(0, kShownBytes), " (", aborts_.suppressed(),
                             " more such lines held back)"));
      }
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* ConnectFabric(grpc::CallbackServerContext* context,
                                          const v1::ConnectFabricRequest* request,
                                          v1::ConnectFabricResponse* response) override {
    return RunSlowUnary(state_, slow_, "KvMemory/ConnectFabric", context,
                        [=, this] { return server::ConnectFabric(state_, *request, *response); });
  }

  grpc::ServerUnaryReactor* FenceWriter(grpc::CallbackServerContext* context,
                                        const v1::FenceWriterRequest* request,
                                        v1::FenceWriterResponse*) override {
    return RunUnary(state_, "KvMemory/FenceWriter", context, request,
                    [&](KvCore&) { return server::FenceWriter(state_, *request); });
  }

  grpc::ServerUnaryReactor* DisconnectFabric(grpc::CallbackServerContext* context,
                                             const v1::DisconnectFabricRequest* request,
                                             v1::DisconnectFabricResponse*) override {
    return RunSlowUnary(state_, slow_, "KvMemory/DisconnectFabric", context,
                        [=, this] { return server::DisconnectFabric(state_, *request); });
  }

 private:
  ServiceState& state_;
  AttachWaiters& waiters_;
  SlowCalls& slow_;
  LogGate aborts_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeKvMemoryService(ServiceState& state, AttachWaiters& waiters,
                                                   SlowCalls& slow) {
  return std::make_unique<KvMemoryService>(state, waiters, slow);
}

}  // namespace oasiskv::server
