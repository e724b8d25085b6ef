#include "server/service/fabric_calls.h"

#include "absl/strings/str_cat.h"
#include "common/fabric/endpoint.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"
#include "oasiskv/v1/kv_memory.pb.h"
#include "server/service/service_state.h"

namespace oasiskv::server {
namespace {

// A hello of verbs with the most queue pairs is far below it.
constexpr size_t kMaxHelloBytes = 4 << 10;

absl::StatusOr<fabric::Endpoint*> EndpointOf(const ServiceState& state, const std::string& name) {
  OASISKV_RETURN_IF_ERROR(state.Core().status());  // the endpoints are there only after it
  for (fabric::Endpoint* endpoint : state.endpoints()) {
    if (endpoint->fabric() == name) return endpoint;
  }
  return MakeError(ErrorCode::kUnsupported, absl::StrCat("this daemon does not serve the fabric '",
                                                         name, "'; name it in --fabrics"));
}

}  // namespace

absl::Status ConnectFabric(const ServiceState& state, const v1::ConnectFabricRequest& request,
                           v1::ConnectFabricResponse& response) {
  OASISKV_ASSIGN_OR_RETURN(fabric::Endpoint * endpoint, EndpointOf(state, request.fabric()));
  const std::string& hello = request.client_hello();
  if (hello.size() > kMaxHelloBytes) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrCat("client_hello has ", hello.size(), " bytes, at most ",
                                  kMaxHelloBytes, " are allowed"));
  }
  OASISKV_ASSIGN_OR_RETURN(*response.mutable_server_hello(), endpoint->Accept(hello));
  return absl::OkStatus();
}

absl::Status FenceWriter(const ServiceState& state, const v1::FenceWriterRequest& request) {
  OASISKV_ASSIGN_OR_RETURN(fabric::Endpoint * endpoint, EndpointOf(state, request.fabric()));
  endpoint->Fence(ConnectionId(request.connection()), GrantId(request.grant_id()));
  return absl::OkStatus();
}

absl::Status DisconnectFabric(const ServiceState& state,
                              const v1::DisconnectFabricRequest& request) {
  OASISKV_ASSIGN_OR_RETURN(fabric::Endpoint * endpoint, EndpointOf(state, request.fabric()));
  endpoint->Close(ConnectionId(request.connection()));
  return absl::OkStatus();
}

}  // namespace oasiskv::server
