#include "server/service/rpc_status.h"

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "oasiskv/error.h"

namespace oasiskv::server {

grpc::Status ToGrpc(const absl::Status& status, grpc::CallbackServerContext& context) {
  if (status.ok()) return grpc::Status::OK;
  context.AddTrailingMetadata(kErrorCodeKey, absl::StrCat(static_cast<int>(ErrorCodeOf(status))));
  // Both enums have the canonical codes.
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

}  // namespace oasiskv::server
