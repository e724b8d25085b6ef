// The frame every unary call runs in. Included by the services' .cc files only: it needs gRPC's
// headers.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/service/rpc_status.h"
#include "server/service/service_state.h"

namespace oasiskv::server {

template <typename Message>
absl::Status CheckMessageSize(const Message& message, absl::string_view what) {
  const size_t bytes = message.ByteSizeLong();
  if (bytes <= kMaxMessageBytes) return absl::OkStatus();
  return MakeError(ErrorCode::kCapacity,
                   absl::StrCat("the ", what, " would be ", bytes, " bytes, and at most ",
                                kMaxMessageBytes, " fit into one gRPC message; split the call"));
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
  reactor->Finish(ToGrpc(status, *context));
  return reactor;
}

}  // namespace oasiskv::server
