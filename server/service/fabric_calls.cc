#include "server/service/fabric_calls.h"

#include "absl/strings/str_cat.h"
#include "common/fabric/verbs/verbs.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"
#include "oasiskv/v1/kv_memory.pb.h"
#include "server/service/service_state.h"

namespace oasiskv::server {
namespace {

// A hello with the most queue pairs is far below it.
constexpr size_t kMaxHelloBytes = 4 << 10;

absl::StatusOr<fabric::VerbsEndpoint*> Endpoint(const ServiceState& state) {
  OASISKV_RETURN_IF_ERROR(state.Core().status());  // the addresses are there only after it
  if (fabric::VerbsEndpoint* verbs = state.addresses().verbs) return verbs;
  return MakeError(ErrorCode::kUnsupported,
                   "this daemon does not serve verbs; start it with verbs in --fabrics");
}

}  // namespace

absl::Status ConnectVerbsClient(const ServiceState& state, const v1::ConnectFabricRequest& request,
                                v1::ConnectFabricResponse& response) {
  OASISKV_ASSIGN_OR_RETURN(fabric::VerbsEndpoint * verbs, Endpoint(state));
  const std::string& bytes = request.client_hello();
  if (bytes.size() > kMaxHelloBytes) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrCat("client_hello has ", bytes.size(), " bytes, at most ",
                                  kMaxHelloBytes, " are allowed"));
  }
  OASISKV_ASSIGN_OR_RETURN(const fabric::verbs::ClientHello hello,
                           fabric::verbs::ParseClientHello(bytes));
  OASISKV_ASSIGN_OR_RETURN(const fabric::verbs::ServerHello answer, verbs->Accept(hello));
  response.set_server_hello(fabric::verbs::Serialize(answer));
  return absl::OkStatus();
}

absl::Status FenceVerbsWriter(const ServiceState& state, const v1::FenceWriterRequest& request) {
  OASISKV_ASSIGN_OR_RETURN(fabric::VerbsEndpoint * verbs, Endpoint(state));
  verbs->Fence(ConnectionId(request.connection()), GrantId(request.grant_id()));
  return absl::OkStatus();
}

absl::Status DisconnectVerbsClient(const ServiceState& state,
                                   const v1::DisconnectFabricRequest& request) {
  OASISKV_ASSIGN_OR_RETURN(fabric::VerbsEndpoint * verbs, Endpoint(state));
  verbs->Close(ConnectionId(request.connection()));
  return absl::OkStatus();
}

}  // namespace oasiskv::server
