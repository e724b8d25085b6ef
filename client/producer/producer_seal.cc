// The end of a producer's writing: the tail, the first top-K, the seal.
#include <cstring>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/producer/producer_impl.h"
#include "client/selection/score.h"
#include "client/selection/topk.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv {

absl::Status Producer::Impl::CheckSeal(const SealSpec& spec) const {
  for (uint32_t l = 0; l < geometry_.layers; ++l) {
    const uint64_t have = layers_[l].next_token;
    if (have == spec.token_count) continue;
    return have < spec.token_count
               ? MakeError(ErrorCode::kNotCommitted,
                           absl::StrFormat("Seal of %d tokens: layer %d has only %d written",
                                           spec.token_count, l, have))
               : MakeError(ErrorCode::kInvalidArgument,
                           absl::StrFormat("Seal of %d tokens: layer %d has %d written",
                                           spec.token_count, l, have));
  }
  if (spec.first_queries != nullptr) {
    if (spec.query_heads == 0 || spec.query_heads % geometry_.kv_heads != 0) {
      return MakeError(ErrorCode::kInvalidArgument,
                       absl::StrFormat("Seal: query_heads is %d; it must be a multiple of the "
                                       "shard's %d KV heads",
                                       spec.query_heads, geometry_.kv_heads));
    }
    if (spec.top_k == 0) {
      return MakeError(ErrorCode::kInvalidArgument, "Seal: top_k is 0; give at least 1");
    }
    if (!(spec.bound_weight >= 0.0 && spec.bound_weight <= 1.0)) {
      return MakeError(
          ErrorCode::kInvalidArgument,
          absl::StrFormat("Seal: bound_weight is %g; it must be between 0 and 1 (1: the bound)",
                          spec.bound_weight));
    }
  }
  if (const uint64_t limit = session_->daemon().max_blob_bytes; spec.blob.size() > limit) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrFormat("Seal: the blob has %d bytes, the daemon takes %d (its flag "
                                     "for the blob limit raises that)",
                                     spec.blob.size(), limit));
  }
  return absl::OkStatus();
}

absl::Status Producer::Impl::WriteTail() {
  for (uint32_t l = 0; l < geometry_.layers; ++l) {
    LayerState& layer = layers_[l];
    const auto tail = static_cast<uint32_t>(layer.next_token % geometry_.block_tokens);
    if (tail == 0 || layer.tail_written) continue;
    const auto block = static_cast<uint32_t>(layer.next_token / geometry_.block_tokens);
    const client::FrameStage::Slot slot = stage_.Add(l, block);
    client::CopyTokens(geometry_, layer.partial.data(), tail, slot.entries);
    client::ZeroTail(geometry_, tail, slot.entries);
    // A block that is not full is no candidate of selection: its summary says nothing, and no stale
    // bytes.
    std::memset(slot.summaries, 0, geometry_.layer_summaries_bytes());
    if (stage_.full() || l + 1 == geometry_.layers) OASISKV_RETURN_IF_ERROR(Flush(stage_));
  }
  OASISKV_RETURN_IF_ERROR(Flush(stage_));
  for (LayerState& layer : layers_) {
    layer.tail_written = layer.next_token % geometry_.block_tokens != 0;
  }
  return absl::OkStatus();
}

std::vector<int32_t> Producer::Impl::FirstTopK(const SealSpec& spec) const {
  const uint32_t heads = geometry_.kv_heads;
  const uint32_t group = spec.query_heads / heads;
  const auto complete = static_cast<uint32_t>(spec.token_count / geometry_.block_tokens);
  std::vector<int32_t> out(uint64_t{geometry_.layers} * heads * spec.top_k, -1);
  std::vector<float> scores(complete);
  std::vector<float> bounds;
  std::vector<uint64_t> scratch;
  for (uint32_t l = 0; l < geometry_.layers && complete > 0; ++l) {
    for (uint32_t h = 0; h < heads; ++h) {
      ScoreInput input;
      input.summaries = layers_[l].summaries.data() + uint64_t{h} * geometry_.summary_bytes();
      input.block_stride = geometry_.layer_summaries_bytes();
      input.element_type = geometry_.element_type;
      input.head_dim = geometry_.head_dim;
      input.blocks = complete;
      input.queries = spec.first_queries +
                      (uint64_t{l} * spec.query_heads + uint64_t{h} * group) * geometry_.head_dim;
      input.group = group;
      input.combine = spec.combine;
      input.bound_weight = spec.bound_weight;
      ScoreBlocks(input, scores.data(), bounds);
      TopK(scores.data(), complete, spec.top_k, out.data() + (uint64_t{l} * heads + h) * spec.top_k,
           scratch);
    }
  }
  return out;
}

absl::Status Producer::Impl::Seal(const SealSpec& spec) {
  if (phase_ != Phase::kSealing) OASISKV_RETURN_IF_ERROR(CheckPhase("Seal"));
  OASISKV_RETURN_IF_ERROR(CheckSeal(spec));
  OASISKV_RETURN_IF_ERROR(CheckGrant());
  OASISKV_RETURN_IF_ERROR(WriteTail());
  phase_ = Phase::kSealing;
  OASISKV_RETURN_IF_ERROR(CommitWritten());
  Fence();
  client::SealCall call;
  call.token_count = spec.token_count;
  if (spec.first_queries != nullptr) {
    call.first_topk = FirstTopK(spec);
    call.first_topk_k = spec.top_k;
  }
  call.blob = spec.blob;
  OASISKV_RETURN_IF_ERROR(
      Explain(session_->control().Seal(grant_->key(), call, core_->options().rpc_timeout)));
  core_->keeper().Drop(*grant_);
  phase_ = Phase::kSealed;
  return absl::OkStatus();
}

}  // namespace oasiskv
