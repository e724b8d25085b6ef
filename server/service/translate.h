// Protobuf messages to the core's structs and back.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/core/kv_core.h"

namespace oasiskv::v1 {
class AttachRequest;
class AttachResponse;
class CommitRequest;
class ExtendResponse;
class GetCapacityResponse;
class GrantInfo;
class GrantRef;
class OpenRequest;
class OpenResponse;
class RenewResponse;
class SequenceInfo;
}  // namespace oasiskv::v1

namespace oasiskv::server {

// Thread contract: pure functions.
//
// Towards structs, values that a struct cannot hold are INVALID_ARGUMENT naming the field; all other
// checks are the core's.

// `milliseconds` of the field named `field`, at most a day.
absl::StatusOr<Duration> ToDuration(absl::string_view field, uint64_t milliseconds);
absl::StatusOr<OpenSpec> ToOpenSpec(const v1::OpenRequest& request);
absl::StatusOr<AttachSpec> ToAttachSpec(const v1::AttachRequest& request);
std::vector<LayerBlocks> ToLayerBlocks(const v1::CommitRequest& request);
GrantKey ToGrantKey(const v1::GrantRef& message);

void ToMessage(const OpenResult& result, v1::OpenResponse& message);
void ToMessage(const ExtendResult& result, v1::ExtendResponse& message);
// Moves the blob and the first top-K out of `result`.
void ToMessage(AttachResult&& result, v1::AttachResponse& message);
void ToMessage(const RenewResult& result, uint64_t incarnation, v1::RenewResponse& message);
void ToMessage(const CapacityInfo& info, v1::GetCapacityResponse& message);
void ToMessage(const SequenceInfo& info, v1::SequenceInfo& message);
void ToMessage(const GrantInfo& info, v1::GrantInfo& message);

}  // namespace oasiskv::server
