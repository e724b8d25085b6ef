// Runs the body of a unary call. Included by the services' .cc files only: it needs gRPC's headers.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/service/rpc_status.h"
#include "server/service/service_state.h"
#include "server/service/slow_calls.h"

namespace oasiskv::server {

template <typename Message>
absl::Status CheckMessageSize(const Message& message, absl::string_view what) {
  const size_t bytes = message.ByteSizeLong();
  if (bytes <= kMaxMessageBytes) return absl::OkStatus();
  return MakeError(ErrorCode::kCapacity,
                   absl::StrCat("the ", what, " has ", bytes, " bytes; one gRPC message may have ",
                                kMaxMessageBytes, "; split the call"));
}

// What the caller is told: `status`, unless the answer is to be lost.
inline grpc::Status ToAnswer(ServiceState& state, absl::string_view method,
                             const absl::Status& status, grpc::CallbackServerContext& context) {
  if (absl::StartsWith(method, "KvMemory/") && state.reply_loss().Lose(method)) {
    return {grpc::StatusCode::UNAVAILABLE, "the answer is lost (--lose_answers)"};
  }
  return ToGrpc(status, context);
}

// Refuses an oversized request or a daemon that is not ready, runs body(core) -> absl::Status,
// counts and answers. For bodies that never block: they run on gRPC's few threads.
template <typename Request, typename Body>
grpc::ServerUnaryReactor* RunUnary(ServiceState& state, absl::string_view method,
                                   grpc::CallbackServerContext* context, const Request* request,
                                   Body body) {
  const MonotonicTime start = Clock::Real().Now();
  absl::Status status = CheckMessageSize(*request, "request");
  if (status.ok()) {
    auto core = state.Core();
    status = core.ok() ? body(**core) : core.status();
  }
  state.rpc_metrics().Observe(method, status, Clock::Real().Now() - start);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToAnswer(state, method, status, *context));
  return reactor;
}

// As RunUnary, for a body() -> absl::Status that may block. It reads the request and writes the
// response, which gRPC keeps until the call is finished, also when the caller is gone.
template <typename Body>
grpc::ServerUnaryReactor* RunSlowUnary(ServiceState& state, SlowCalls& slow,
                                       absl::string_view method,
                                       grpc::CallbackServerContext* context, Body body) {
  const MonotonicTime start = Clock::Real().Now();
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const auto finish = [&state, method, context, reactor, start](const absl::Status& status) {
    state.rpc_metrics().Observe(method, status, Clock::Real().Now() - start);
    reactor->Finish(ToAnswer(state, method, status, *context));
  };
  absl::Status status = state.Core().status();
  if (status.ok()) {
    status = slow.Add([finish, body = std::move(body)](const absl::Status& turn) {
      finish(turn.ok() ? body() : turn);
    });
  }
  if (!status.ok()) finish(status);
  return reactor;
}

}  // namespace oasiskv::server
