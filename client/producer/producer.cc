#include "oasiskv/producer.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/connection/core.h"
#include "client/producer/frame_stage.h"
#include "client/selection/score.h"
#include "common/crc32c.h"
#include "common/fabric/fabric.h"
#include "common/pause_point.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv {
namespace {

// Checksums of one Commit call: 4 bytes each, far below gRPC's limit of 4 MiB per message.
constexpr uint64_t kChecksumsPerCommit = uint64_t{1} << 18;
constexpr size_t kRangesPerCommit = 4096;

}  // namespace

// Thread contract: not safe for concurrent use.
//
// For each layer tokens come in order, so what is written whole is a prefix of its blocks. Of the
// block that is partly filled only the producer has the bytes (one block per layer) until later
// tokens or Seal complete it.
class Producer::Impl {
 public:
  Impl(std::shared_ptr<client::Core> core, std::shared_ptr<client::Session> session,
       fabric::Connection* writer, std::shared_ptr<client::GrantState> grant,
       const ProducerSpec& spec, const client::GivenGrant& given);
  ~Impl();

  absl::Status Extend(uint32_t blocks);
  absl::Status WriteTokens(LayerIndex layer, uint64_t first_token, uint32_t tokens, KvView keys,
                           KvView values);
  absl::Status CommitWritten();
  absl::Status Commit(uint32_t first_layer, uint32_t layer_count, uint32_t first_block,
                      uint32_t block_count);
  absl::Status Seal(const SealSpec& spec);
  absl::Status Abort(const std::string& reason);

  const Geometry& geometry() const { return geometry_; }
  uint32_t blocks() const { return static_cast<uint32_t>(view_->frames.size()); }

 private:
  enum class Phase { kWriting, kSealing, kSealed, kAborted };

  // Of one layer.
  struct LayerState {
    uint64_t next_token = 0;
    uint32_t committed = 0;  // blocks from 0 on that are published
    // Entries of the block that next_token lies in; empty: none begun.
    std::vector<std::byte> partial;
    // [block][head], of complete blocks: for Seal's first top-K.
    std::vector<std::byte> summaries;
    // [block][head], of written blocks, where asked for.
    std::vector<uint32_t> checksums;
    bool tail_written = false;  // Seal wrote the partly filled block
  };

  absl::Status CheckPhase(const char* call) const;
  absl::Status CheckGrant() const;
  absl::Status CheckSeal(const SealSpec& spec) const;
  uint32_t WholeBlocks(const LayerState& layer) const {
    return static_cast<uint32_t>(layer.next_token / geometry_.block_tokens) +
           (layer.tail_written ? 1 : 0);
  }
  // Sends what the stage holds and, once it is in place, notes it in the layers.
  absl::Status Flush(client::FrameStage& stage);
  absl::Status WriteTail();
  // Publishes without further checks, in calls of bounded size.
  absl::Status Publish(const std::vector<client::LayerBlocks>& ranges);
  std::vector<int32_t> FirstTopK(const SealSpec& spec) const;
  // The last writes are done: tells the daemon so and takes no more.
  void Fence();
  absl::Status Explain(const absl::Status& status) const;

  const std::shared_ptr<client::Core> core_;
  const std::shared_ptr<client::Session> session_;
  fabric::Connection* const writer_;  // the session's
  const std::shared_ptr<client::GrantState> grant_;
  const std::string name_;
  const SequenceId sequence_;
  const Identity identity_;
  const Geometry geometry_;
  const bool with_checksums_;

  std::shared_ptr<const fabric::GrantView> view_;
  std::vector<LayerState> layers_;
  client::FrameStage stage_;
  Phase phase_ = Phase::kWriting;
};

Producer::Impl::Impl(std::shared_ptr<client::Core> core, std::shared_ptr<client::Session> session,
                     fabric::Connection* writer, std::shared_ptr<client::GrantState> grant,
                     const ProducerSpec& spec, const client::GivenGrant& given)
    : core_(std::move(core)),
      session_(std::move(session)),
      writer_(writer),
      grant_(std::move(grant)),
      name_(spec.name),
      sequence_(given.sequence),
      identity_(spec.identity),
      geometry_(spec.geometry),
      with_checksums_(spec.checksums),
      layers_(spec.geometry.layers),
      stage_(spec.geometry) {
  auto view = std::make_shared<fabric::GrantView>();
  view->id = given.key.id;
  view->epoch = given.key.epoch;
  view->word_slot = given.word_slot;
  view->access = fabric::Access::kWrite;
  view->frame_bytes = geometry_.frame_bytes();
  view->frames = given.frames;
  view_ = std::move(view);
}

Producer::Impl::~Impl() {
  if (phase_ == Phase::kSealed || phase_ == Phase::kAborted) return;
  Fence();
  core_->keeper().ReleaseLater(session_, grant_);
}

absl::Status Producer::Impl::CheckPhase(const char* call) const {
  const char* phase = nullptr;
  switch (phase_) {
    case Phase::kWriting:
      return absl::OkStatus();
    case Phase::kSealing:
      phase = "being sealed; call Seal again or drop it";
      break;
    case Phase::kSealed:
      phase = "sealed";
      break;
    case Phase::kAborted:
      phase = "aborted";
      break;
  }
  return MakeError(ErrorCode::kWrongState,
                   absl::StrFormat("%s: sequence \"%s\" is %s", call, name_, phase));
}

absl::Status Producer::Impl::CheckGrant() const {
  OASISKV_RETURN_IF_ERROR(session_->Status());
  return grant_->Check(Clock::Real().Now());
}

absl::Status Producer::Impl::Explain(const absl::Status& status) const {
  return client::ExplainEnd(status, {}, *grant_, *session_);
}

void Producer::Impl::Fence() { writer_->FenceWriter(view_->id); }

absl::Status Producer::Impl::Extend(uint32_t blocks) {
  OASISKV_RETURN_IF_ERROR(CheckPhase("Extend"));
  OASISKV_RETURN_IF_ERROR(CheckGrant());
  if (blocks == 0) {
    return MakeError(ErrorCode::kInvalidArgument, "Extend by 0 blocks; give at least 1");
  }
  auto frames = session_->control().Extend(grant_->key(), this->blocks(), blocks,
                                           core_->options().rpc_timeout);
  if (!frames.ok()) return Explain(frames.status());
  // Transfers hold the view they began with, so a longer one takes its place.
  auto view = std::make_shared<fabric::GrantView>(*view_);
  view->frames.insert(view->frames.end(), frames->begin(), frames->end());
  view_ = std::move(view);
  return absl::OkStatus();
}

absl::Status Producer::Impl::Flush(client::FrameStage& stage) {
  if (stage.empty()) return absl::OkStatus();
  OASISKV_RETURN_IF_ERROR(CheckGrant());
  const client::BatchDeadline deadline =
      client::CutByLease(Clock::Real().Now() + core_->options().read_timeout, *grant_);
  const std::vector<fabric::WritePiece> pieces = stage.Pieces();
  OASISKV_PAUSE_POINT("client.producer.write");
  const absl::Status status = writer_->Write(view_, pieces, deadline.at)->Wait();
  if (!status.ok()) {
    stage.Clear();
    return client::ExplainEnd(status, deadline, *grant_, *session_);
  }
  const uint32_t heads = geometry_.kv_heads;
  for (const client::FrameStage::Slot& slot : stage.slots()) {
    LayerState& layer = layers_[slot.layer];
    layer.summaries.resize(std::max<uint64_t>(
        layer.summaries.size(), (uint64_t{slot.block} + 1) * geometry_.layer_summaries_bytes()));
    std::memcpy(layer.summaries.data() + uint64_t{slot.block} * geometry_.layer_summaries_bytes(),
                slot.summaries, geometry_.layer_summaries_bytes());
    if (!with_checksums_) continue;
    layer.checksums.resize(
        std::max<uint64_t>(layer.checksums.size(), (uint64_t{slot.block} + 1) * heads));
    for (uint32_t h = 0; h < heads; ++h) {
      layer.checksums[uint64_t{slot.block} * heads + h] =
          Crc32c({slot.entries + uint64_t{h} * geometry_.entry_bytes(), geometry_.entry_bytes()});
    }
  }
  stage.Clear();
  return absl::OkStatus();
}

absl::Status Producer::Impl::WriteTokens(LayerIndex layer_index, uint64_t first_token,
                                         uint32_t tokens, KvView keys, KvView values) {
  OASISKV_RETURN_IF_ERROR(CheckPhase("WriteTokens"));
  if (layer_index.value() >= geometry_.layers) {
    return MakeError(ErrorCode::kOutOfRange,
                     absl::StrFormat("WriteTokens: layer %d; the geometry has %d",
                                     layer_index.value(), geometry_.layers));
  }
  LayerState& layer = layers_[layer_index.value()];
  if (first_token != layer.next_token) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrFormat("WriteTokens: first_token is %d; layer %d expects token %d "
                                     "(tokens of a layer come in order, without gap)",
                                     first_token, layer_index.value(), layer.next_token));
  }
  const uint32_t block_tokens = geometry_.block_tokens;
  if (first_token + tokens > uint64_t{blocks()} * block_tokens) {
    return MakeError(ErrorCode::kOutOfRange,
                     absl::StrFormat("WriteTokens: tokens %d to %d; %d blocks of %d tokens are "
                                     "reserved, call Extend first",
                                     first_token, first_token + tokens, blocks(), block_tokens));
  }
  if (tokens == 0) return absl::OkStatus();
  if (keys.base == nullptr || (values.base == nullptr && geometry_.packing != Packing::kLatent)) {
    return MakeError(ErrorCode::kInvalidArgument, "WriteTokens: keys.base or values.base is null");
  }
  OASISKV_RETURN_IF_ERROR(CheckGrant());

  uint64_t done = 0;  // tokens of the caller's that are packed
  while (done < tokens) {
    const uint64_t token = first_token + done;
    const auto block = static_cast<uint32_t>(token / block_tokens);
    const auto at = static_cast<uint32_t>(token % block_tokens);
    const auto take = static_cast<uint32_t>(std::min<uint64_t>(block_tokens - at, tokens - done));
    if (at + take < block_tokens) {  // stays partial: kept here
      // What was staged must be in place before the layer's state says so.
      OASISKV_RETURN_IF_ERROR(Flush(stage_));
      layer.partial.resize(geometry_.layer_entries_bytes());
      client::PackTokens(geometry_, keys, values, done, take, layer.partial.data(), at);
      layer.next_token = token + take;
      return absl::OkStatus();
    }
    const client::FrameStage::Slot slot = stage_.Add(layer_index.value(), block);
    if (at > 0) client::CopyTokens(geometry_, layer.partial.data(), at, slot.entries);
    client::PackTokens(geometry_, keys, values, done, take, slot.entries, at);
    client::Summarise(geometry_, slot.entries, slot.summaries);
    done += take;
    if (stage_.full() || done == tokens) OASISKV_RETURN_IF_ERROR(Flush(stage_));
  }
  layer.next_token = first_token + tokens;
  return absl::OkStatus();
}

absl::Status Producer::Impl::Publish(const std::vector<client::LayerBlocks>& ranges) {
  std::vector<client::LayerBlocks> call_ranges;
  std::vector<uint32_t> checksums;
  const auto send = [&]() -> absl::Status {
    if (call_ranges.empty()) return absl::OkStatus();
    OASISKV_RETURN_IF_ERROR(CheckGrant());
    OASISKV_RETURN_IF_ERROR(Explain(session_->control().Commit(
        grant_->key(), call_ranges, checksums, core_->options().rpc_timeout)));
    for (const client::LayerBlocks& r : call_ranges) {
      for (uint32_t l = r.first_layer; l < r.first_layer + r.layer_count; ++l) {
        uint32_t& committed = layers_[l].committed;
        if (r.first_block <= committed) {
          committed = std::max(committed, r.first_block + r.block_count);
        }
      }
    }
    call_ranges.clear();
    checksums.clear();
    return absl::OkStatus();
  };
  const uint32_t heads = geometry_.kv_heads;
  for (const client::LayerBlocks& range : ranges) {
    const uint64_t per_block = with_checksums_ ? uint64_t{range.layer_count} * heads : 0;
    const auto step =
        per_block == 0
            ? range.block_count
            : static_cast<uint32_t>(std::max<uint64_t>(1, kChecksumsPerCommit / per_block));
    for (uint32_t done = 0; done < range.block_count;) {
      client::LayerBlocks part = range;
      part.first_block += done;
      part.block_count = std::min(step, range.block_count - done);
      done += part.block_count;
      if (call_ranges.size() >= kRangesPerCommit ||
          checksums.size() + part.block_count * per_block > kChecksumsPerCommit) {
        OASISKV_RETURN_IF_ERROR(send());
      }
      call_ranges.push_back(part);
      if (!with_checksums_) continue;
      for (uint32_t b = part.first_block; b < part.first_block + part.block_count; ++b) {
        for (uint32_t l = part.first_layer; l < part.first_layer + part.layer_count; ++l) {
          const auto first = layers_[l].checksums.begin() + int64_t{b} * heads;
          checksums.insert(checksums.end(), first, first + heads);
        }
      }
    }
  }
  return send();
}

absl::Status Producer::Impl::CommitWritten() {
  if (phase_ != Phase::kSealing) OASISKV_RETURN_IF_ERROR(CheckPhase("CommitWritten"));
  // Neighbouring layers with the same news become one range.
  std::vector<client::LayerBlocks> ranges;
  for (uint32_t l = 0; l < geometry_.layers; ++l) {
    const LayerState& layer = layers_[l];
    const uint32_t whole = WholeBlocks(layer);
    if (whole <= layer.committed) continue;
    const uint32_t count = whole - layer.committed;
    if (!ranges.empty()) {
      client::LayerBlocks& last = ranges.back();
      if (last.first_layer + last.layer_count == l && last.first_block == layer.committed &&
          last.block_count == count) {
        ++last.layer_count;
        continue;
      }
    }
    ranges.push_back({l, 1, layer.committed, count});
  }
  return Publish(ranges);
}

absl::Status Producer::Impl::Commit(uint32_t first_layer, uint32_t layer_count,
                                    uint32_t first_block, uint32_t block_count) {
  OASISKV_RETURN_IF_ERROR(CheckPhase("Commit"));
  if (layer_count == 0 || block_count == 0 ||
      uint64_t{first_layer} + layer_count > geometry_.layers ||
      uint64_t{first_block} + block_count > blocks()) {
    return MakeError(
        ErrorCode::kOutOfRange,
        absl::StrFormat("Commit of %d layers from %d and %d blocks from %d; the sequence has %d "
                        "layers and %d reserved blocks, and a range at least 1 of each",
                        layer_count, first_layer, block_count, first_block, geometry_.layers,
                        blocks()));
  }
  for (uint32_t l = first_layer; l < first_layer + layer_count; ++l) {
    const uint32_t whole = WholeBlocks(layers_[l]);
    if (first_block + block_count <= whole) continue;
    return MakeError(ErrorCode::kNotCommitted,
                     absl::StrFormat("Commit: block %d of layer %d is not written whole (the layer "
                                     "has %d tokens); write it first",
                                     std::max(whole, first_block), l, layers_[l].next_token));
  }
  return Publish({{first_layer, layer_count, first_block, block_count}});
}

absl::Status Producer::Impl::Abort(const std::string& reason) {
  if (phase_ != Phase::kSealing) OASISKV_RETURN_IF_ERROR(CheckPhase("Abort"));
  Fence();
  // The name belongs to this producer only as long as the grant does: after the daemon threw the
  // sequence away another writer may have opened it again.
  OASISKV_RETURN_IF_ERROR(CheckGrant());
  // The sequence's id keeps a repeat from the next one of that name; it needs no token.
  OASISKV_RETURN_IF_ERROR(Explain(
      session_->control()
          .Abort(name_, sequence_, identity_, reason, CallToken(), core_->options().rpc_timeout)
          .status()));
  core_->keeper().Drop(*grant_);
  phase_ = Phase::kAborted;
  return absl::OkStatus();
}

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
    // A block that is not full is not a candidate of selection. Its summary is zero, so that it holds
    // no stale bytes.
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

Producer::Producer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Producer::Producer(Producer&&) noexcept = default;
Producer& Producer::operator=(Producer&&) noexcept = default;
Producer::~Producer() = default;

absl::Status Producer::Extend(uint32_t blocks) { return impl_->Extend(blocks); }
absl::Status Producer::WriteTokens(LayerIndex layer, uint64_t first_token, uint32_t tokens,
                                   KvView keys, KvView values) {
  return impl_->WriteTokens(layer, first_token, tokens, keys, values);
}
absl::Status Producer::CommitWritten() { return impl_->CommitWritten(); }
absl::Status Producer::Commit(LayerIndex first_layer, uint32_t layer_count, BlockIndex first_block,
                              uint32_t block_count) {
  return impl_->Commit(first_layer.value(), layer_count, first_block.value(), block_count);
}
absl::Status Producer::Seal(const SealSpec& spec) { return impl_->Seal(spec); }
absl::Status Producer::Abort(const std::string& reason) { return impl_->Abort(reason); }
const Geometry& Producer::geometry() const { return impl_->geometry(); }
uint32_t Producer::blocks() const { return impl_->blocks(); }

absl::StatusOr<Producer> Client::Open(const ProducerSpec& spec) {
  client::Core& core = *impl_->core;
  OASISKV_RETURN_IF_ERROR(spec.geometry.Validate());
  const Duration timeout = core.options().rpc_timeout;
  const CallToken token = client::DrawToken();
  std::shared_ptr<client::Session> last;
  std::unique_ptr<Producer::Impl> made;
  const auto call_daemon = [&](const std::shared_ptr<client::Session>& session) -> absl::Status {
    OASISKV_ASSIGN_OR_RETURN(fabric::Connection * writer, session->Writer());
    client::OpenCall call;
    call.name = spec.name;
    call.identity = spec.identity;
    call.geometry = spec.geometry;
    call.blocks = spec.blocks;
    call.lease = core.LeaseOr(spec.lease);
    call.connection = writer->connection_id();
    call.checksums = spec.checksums;
    call.token = token;
    last = session;
    auto opened = session->control().Open(call, timeout);
    if (ErrorCodeOf(opened.status()) == ErrorCode::kPeerLost) {
      // The daemon has ended the writer's connection, which may take this side seconds to notice.
      session->MarkLost(std::string(opened.status().message()));
    }
    OASISKV_ASSIGN_OR_RETURN(client::GivenGrant given, std::move(opened));
    OASISKV_RETURN_IF_ERROR(session->VerifyGrant(given.key.id, timeout));
    auto grant = core.keeper().Hold(session, given, call.lease, client::GrantRole::kWriter);
    made = std::make_unique<Producer::Impl>(impl_->core, session, writer, std::move(grant), spec,
                                            given);
    return absl::OkStatus();
  };
  if (absl::Status status = core.OnSession(Clock::Real().Now() + timeout, call_daemon);
      !status.ok()) {
    // The daemon may have opened it all the same, for a connection of ours that goes on.
    const ErrorCode code = ErrorCodeOf(status);
    const bool unknown = code == ErrorCode::kPeerLost || code == ErrorCode::kDeadlineExceeded;
    if (unknown && last != nullptr) core.keeper().AbandonOpen(std::move(last), token);
    return status;
  }
  return Producer(std::move(made));
}

}  // namespace oasiskv
