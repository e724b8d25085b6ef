// absl::Status on the wire.
#pragma once

#include <cstddef>

#include "absl/status/status.h"

namespace grpc {
class CallbackServerContext;
class Status;
}  // namespace grpc

namespace oasiskv::server {

// Trailing metadata key of every failed call; its value is the ErrorCode as a decimal number.
inline constexpr char kErrorCodeKey[] = "oasiskv-error-code";

// The largest message of this service: gRPC clients refuse 4 MiB and more by default, and framing
// needs some bytes.
inline constexpr size_t kMaxMessageBytes = (size_t{4} << 20) - (size_t{64} << 10);

// The canonical code and message of `status`. The ErrorCode of an error goes into the trailing
// metadata of `context`.
grpc::Status ToGrpc(const absl::Status& status, grpc::CallbackServerContext& context);

}  // namespace oasiskv::server
