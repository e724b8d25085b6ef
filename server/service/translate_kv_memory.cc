#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/wire/convert.h"
#include "oasiskv/error.h"
#include "oasiskv/v1/kv_memory.pb.h"
#include "server/service/translate.h"

namespace oasiskv::server {
namespace {

constexpr uint64_t kDayMillis = uint64_t{24} * 3600 * 1000;

uint64_t ToMillis(Duration duration) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(duration).count());
}

}  // namespace

absl::StatusOr<Duration> ToDuration(absl::string_view field, uint64_t milliseconds) {
  if (milliseconds > kDayMillis) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        absl::StrCat(field, " is ", milliseconds, "; at most a day (86400000) is allowed"));
  }
  return Millis(static_cast<int64_t>(milliseconds));
}

absl::StatusOr<OpenSpec> ToOpenSpec(const v1::OpenRequest& request) {
  OpenSpec out;
  out.name = request.name();
  out.identity = wire::FromMessage(request.identity());
  OASISKV_ASSIGN_OR_RETURN(out.geometry, wire::FromMessage(request.geometry()));
  out.blocks = request.blocks();
  OASISKV_ASSIGN_OR_RETURN(out.lease, ToDuration("lease_ms", request.lease_ms()));
  out.connection = ConnectionId(request.writer_connection());
  out.checksums = request.checksums();
  out.token = CallToken(request.token());
  return out;
}

absl::StatusOr<AttachSpec> ToAttachSpec(const v1::AttachRequest& request) {
  AttachSpec out;
  out.name = request.name();
  out.identity = wire::FromMessage(request.identity());
  OASISKV_ASSIGN_OR_RETURN(out.geometry, wire::FromMessage(request.geometry()));
  out.first_head = request.first_head();
  out.head_count = request.head_count();
  OASISKV_ASSIGN_OR_RETURN(out.lease, ToDuration("lease_ms", request.lease_ms()));
  out.require_sealed = request.wait_for_seal_ms() > 0;
  out.token = CallToken(request.token());
  return out;
}

std::vector<LayerBlocks> ToLayerBlocks(const v1::CommitRequest& request) {
  std::vector<LayerBlocks> out;
  out.reserve(request.ranges_size());
  for (const v1::LayerBlocks& range : request.ranges()) {
    out.push_back(
        {range.first_layer(), range.layer_count(), range.first_block(), range.block_count()});
  }
  return out;
}

GrantKey ToGrantKey(const v1::GrantRef& message) {
  return {GrantId(message.grant_id()), Epoch(message.epoch())};
}

void ToMessage(const OpenResult& result, v1::OpenResponse& message) {
  message.set_sequence_id(result.sequence.value());
  wire::ToMessage(result.grant, *message.mutable_grant());
}

void ToMessage(const ExtendResult& result, v1::ExtendResponse& message) {
  message.set_first_block(result.first_block);
  for (const FrameAddress& frame : result.frames) message.add_frames(frame.Pack());
}

void ToMessage(AttachResult&& result, v1::AttachResponse& message) {
  message.set_sequence_id(result.sequence.value());
  wire::ToMessage(result.grant, *message.mutable_grant());
  message.set_state(static_cast<v1::SequenceState>(result.state));
  message.set_token_count(result.token_count);
  for (const LayerBlocks& range : result.committed) {
    v1::LayerBlocks& out = *message.add_committed();
    out.set_first_layer(range.first_layer);
    out.set_layer_count(range.layer_count);
    out.set_first_block(range.first_block);
    out.set_block_count(range.block_count);
  }
  message.set_first_topk(std::move(result.first_topk.indices));
  message.set_first_topk_k(result.first_topk.k);
  message.set_blob(std::move(result.blob));
  message.mutable_checksums()->Add(result.checksums.begin(), result.checksums.end());
}

void ToMessage(const RenewResult& result, uint64_t incarnation, v1::RenewResponse& message) {
  message.set_lease_ms(ToMillis(result.lease));
  for (const LostGrant& lost : result.lost) {
    v1::RenewResponse::Lost& out = *message.add_lost();
    out.set_grant_id(lost.id.value());
    out.set_reason(static_cast<v1::ErrorCode>(lost.reason));
  }
  message.set_incarnation(incarnation);
}

}  // namespace oasiskv::server
