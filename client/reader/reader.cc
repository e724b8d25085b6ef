#include "oasiskv/reader.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/connection/core.h"
#include "client/reader/fetch.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv {
namespace {

using client::FetchPlan;
using client::FetchState;

class TrackedFetch : public PendingFetch {
 public:
  explicit TrackedFetch(std::shared_ptr<FetchState> state) : state_(std::move(state)) {}
  // A Release may look at the state at this moment, so its end is made certain here.
  ~TrackedFetch() override { state_->Cancel(); }
  bool Done() override { return state_->Done(); }
  absl::Status Wait() override { return state_->Wait(); }
  void Cancel() override { state_->Cancel(); }

 private:
  const std::shared_ptr<FetchState> state_;
};

std::shared_ptr<client::ReadRight> MakeRight(std::shared_ptr<client::Core> core,
                                             std::shared_ptr<client::Session> session,
                                             std::shared_ptr<client::GrantState> grant,
                                             const client::Attached& attached,
                                             const Geometry& geometry) {
  auto view = std::make_shared<fabric::GrantView>();
  view->id = attached.grant.key.id;
  view->epoch = attached.grant.key.epoch;
  view->word_slot = attached.grant.word_slot;
  view->access = fabric::Access::kRead;
  view->frame_bytes = geometry.frame_bytes();
  view->frames = attached.grant.frames;
  auto right = std::make_shared<client::ReadRight>();
  right->core = std::move(core);
  right->session = std::move(session);
  right->grant = std::move(grant);
  right->view = std::move(view);
  return right;
}

std::vector<uint32_t> ChecksumsToVerify(const client::Core& core, const Geometry& geometry,
                                        const client::Attached& attached) {
  const uint64_t expected =
      uint64_t{geometry.layers} * geometry.kv_heads * attached.grant.frames.size();
  if (!core.options().verify_checksums || attached.checksums.size() != expected) return {};
  return attached.checksums;
}

// Which (layer, block) of an attached sequence may be read.
//
// Thread contract: immutable after construction; safe for concurrent use.
//
// A sealed sequence is committed whole and takes no memory here; else it takes one bit per (block, layer).
class CommittedSet {
 public:
  static CommittedSet Everything() { return CommittedSet(); }
  // Runs that reach beyond the shape are cut to it.
  CommittedSet(uint32_t layers, uint32_t blocks, std::span<const client::LayerBlocks> runs)
      : everything_(false), layers_(layers), bits_(uint64_t{layers} * blocks, false) {
    for (const client::LayerBlocks& run : runs) {
      for (uint64_t b = run.first_block;
           b < uint64_t{run.first_block} + run.block_count && b < blocks; ++b) {
        for (uint64_t l = run.first_layer;
             l < uint64_t{run.first_layer} + run.layer_count && l < layers; ++l) {
          bits_[b * layers + l] = true;
        }
      }
    }
  }

  // Pre-condition: layer and block lie inside the shape.
  bool Has(uint32_t layer, uint32_t block) const {
    return everything_ || bits_[uint64_t{block} * layers_ + layer];
  }

 private:
  CommittedSet() = default;

  bool everything_ = true;
  uint32_t layers_ = 0;
  std::vector<bool> bits_;
};

}  // namespace

// Thread contract: safe for concurrent use.
class Reader::Impl {
 public:
  Impl(const std::shared_ptr<client::Core>& core, const std::shared_ptr<client::Session>& session,
       std::shared_ptr<client::GrantState> grant, const ReaderSpec& spec,
       client::Attached attached);

  std::unique_ptr<PendingFetch> FetchEntries(std::span<const EntryRead> entries,
                                             TimePoint deadline);
  std::unique_ptr<PendingFetch> FetchLayers(std::span<const LayerRead> layers, TimePoint deadline);
  absl::Status FetchSummaries(BlockIndex first, uint32_t count, std::byte* into,
                              TimePoint deadline);
  absl::Status FetchTopK(LayerIndex layer, HeadIndex head, std::span<const int32_t> list,
                         std::byte* into, int64_t stride, TimePoint deadline);
  absl::StatusOr<RegisteredBuffer> RegisterBuffer(std::span<std::byte> memory) const {
    return client::RegisterBuffer(right_->core, memory);
  }
  absl::StatusOr<LocalFrames> Frames() const;
  absl::Status Release();
  absl::Status Health() const { return right_->Check(); }
  TimePoint DefaultDeadline() const;

  // Constant after construction.
  const Geometry geometry;
  const uint32_t first_head, head_count;
  const bool sealed;
  const uint64_t token_count;
  const uint32_t blocks;
  const CommittedSet committed;
  const uint32_t first_topk_k;
  const std::vector<int32_t> first_topk;
  const std::string blob;
  const bool local;  // the connection's Local works

 private:
  // OUT_OF_RANGE, FOREIGN, NOT_COMMITTED, in that order; `what` names the item.
  absl::Status CheckItem(const char* list, size_t index, uint32_t block, uint32_t layer,
                         uint32_t head, const std::byte* into) const;
  void AddEntryCheck(client::FetchPlan* plan, size_t index, uint32_t block, uint32_t layer,
                     uint32_t head, std::byte* at) const;
  std::unique_ptr<PendingFetch> Start(client::FetchPlan plan, TimePoint deadline);
  std::unique_ptr<PendingFetch> Fail(const absl::Status& error);
  std::unique_ptr<PendingFetch> Track(std::shared_ptr<client::FetchState> state);
  // A released, dead or expired reader says so before it looks at what is asked of it.
  absl::Status Usable() const { return right_->Check(); }

  const std::shared_ptr<client::ReadRight> right_;
  const std::vector<uint32_t> checksums_;  // [block][layer][head of the shard]; empty: not verified

  Mutex mutex_;
  // Fetches that may be in flight, for Release; swept when it has doubled.
  std::vector<std::weak_ptr<client::FetchState>> in_flight_ ABSL_GUARDED_BY(mutex_);
  size_t sweep_at_ ABSL_GUARDED_BY(mutex_) = 64;
};

Reader::Impl::Impl(const std::shared_ptr<client::Core>& core,
                   const std::shared_ptr<client::Session>& session,
                   std::shared_ptr<client::GrantState> grant, const ReaderSpec& spec,
                   client::Attached attached)
    : geometry(spec.geometry),
      first_head(spec.first_head),
      head_count(spec.head_count == 0 ? spec.geometry.kv_heads - spec.first_head : spec.head_count),
      sealed(attached.sealed),
      token_count(attached.token_count),
      blocks(static_cast<uint32_t>(attached.grant.frames.size())),
      committed(attached.sealed ? CommittedSet::Everything()
                                : CommittedSet(geometry.layers, blocks, attached.committed)),
      first_topk_k(attached.first_topk_k),
      first_topk(std::move(attached.first_topk)),
      blob(std::move(attached.blob)),
      local(session->reader().local()),
      right_(MakeRight(core, session, std::move(grant), attached, geometry)),
      checksums_(ChecksumsToVerify(*core, geometry, attached)) {}

Reader::TimePoint Reader::Impl::DefaultDeadline() const {
  return Clock::Real().Now() + right_->core->options().read_timeout;
}

absl::Status Reader::Impl::CheckItem(const char* list, size_t index, uint32_t block, uint32_t layer,
                                     uint32_t head, const std::byte* into) const {
  // The text is made only when something is wrong: a batch may have 100,000 items.
  if (block < blocks && layer < geometry.layers && head >= first_head &&
      head - first_head < head_count && into != nullptr && committed.Has(layer, block)) {
    return absl::OkStatus();
  }
  const std::string what =
      absl::StrFormat("%s[%d] (block %d, layer %d, head %d)", list, index, block, layer, head);
  const auto out_of_range = [&what](const auto& text) {
    return MakeError(ErrorCode::kOutOfRange, absl::StrCat(what, ": ", text));
  };
  if (block >= blocks) {
    return out_of_range(absl::StrFormat("block %d; the sequence has %d", block, blocks));
  }
  if (layer >= geometry.layers) {
    return out_of_range(absl::StrFormat("layer %d; the geometry has %d", layer, geometry.layers));
  }
  if (head >= geometry.kv_heads) {
    return out_of_range(absl::StrFormat("head %d; the shard has %d", head, geometry.kv_heads));
  }
  if (head < first_head || head - first_head >= head_count) {
    return MakeError(
        ErrorCode::kForeign,
        absl::StrFormat("%s: head %d is not attached; this reader holds heads %d to %d "
                        "of the shard",
                        what, head, first_head, first_head + head_count - 1));
  }
  if (!committed.Has(layer, block)) {
    return MakeError(ErrorCode::kNotCommitted,
                     absl::StrFormat("%s: layer %d of block %d was not committed when this reader "
                                     "attached; attach again later or with wait_for_seal",
                                     what, layer, block));
  }
  return MakeError(ErrorCode::kInvalidArgument, absl::StrCat(what, ": `into` is null"));
}

void Reader::Impl::AddEntryCheck(FetchPlan* plan, size_t index, uint32_t block, uint32_t layer,
                                 uint32_t head, std::byte* at) const {
  if (checksums_.empty()) return;
  const uint64_t entry = (uint64_t{block} * geometry.layers + layer) * geometry.kv_heads + head;
  plan->checks.push_back({at, checksums_[entry], static_cast<uint32_t>(index), block, layer, head});
}

std::unique_ptr<PendingFetch> Reader::Impl::Track(std::shared_ptr<FetchState> state) {
  {
    MutexLock lock(mutex_);
    if (in_flight_.size() >= sweep_at_) {
      std::erase_if(in_flight_, [](const auto& weak) { return weak.expired(); });
      sweep_at_ = std::max<size_t>(64, 2 * in_flight_.size());
    }
    in_flight_.push_back(state);
  }
  // A Release that ran before this batch was listed did not see it.
  if (right_->released.load()) state->CancelFromRelease();
  return std::make_unique<TrackedFetch>(std::move(state));
}

std::unique_ptr<PendingFetch> Reader::Impl::Start(FetchPlan plan, TimePoint deadline) {
  plan.entry_bytes = geometry.entry_bytes();
  return Track(std::make_shared<FetchState>(right_, std::move(plan), deadline));
}

std::unique_ptr<PendingFetch> Reader::Impl::Fail(const absl::Status& error) {
  return std::make_unique<TrackedFetch>(std::make_shared<FetchState>(right_, error));
}

std::unique_ptr<PendingFetch> Reader::Impl::FetchEntries(std::span<const EntryRead> entries,
                                                         TimePoint deadline) {
  if (absl::Status usable = Usable(); !usable.ok()) return Fail(usable);
  FetchPlan plan;
  plan.pieces.reserve(entries.size());
  if (!checksums_.empty()) plan.checks.reserve(entries.size());
  const uint32_t bytes = geometry.entry_bytes();
  for (size_t i = 0; i < entries.size(); ++i) {
    const EntryRead& e = entries[i];
    absl::Status status =
        CheckItem("entries", i, e.block.value(), e.layer.value(), e.head.value(), e.into);
    if (!status.ok()) return Fail(status);
    plan.pieces.push_back(
        {{e.block.value(), geometry.entry_offset(e.layer, e.head), bytes}, e.into});
    AddEntryCheck(&plan, i, e.block.value(), e.layer.value(), e.head.value(), e.into);
  }
  return Start(std::move(plan), deadline);
}

std::unique_ptr<PendingFetch> Reader::Impl::FetchLayers(std::span<const LayerRead> layers,
                                                        TimePoint deadline) {
  if (absl::Status usable = Usable(); !usable.ok()) return Fail(usable);
  FetchPlan plan;
  const uint32_t entry = geometry.entry_bytes();
  const uint32_t layer_bytes = head_count * entry;
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerRead& r = layers[i];
    const uint32_t block = r.block.value();
    const uint64_t first = r.first_layer.value();
    absl::Status status;
    if (r.layers == 0 || first + r.layers > geometry.layers) {
      status =
          MakeError(ErrorCode::kOutOfRange,
                    absl::StrFormat(
                        "layers[%d]: %d layers from %d; the geometry has %d and a read at least 1",
                        i, r.layers, first, geometry.layers));
    }
    for (uint64_t l = first; status.ok() && l < first + r.layers; ++l) {
      status = CheckItem("layers", i, block, static_cast<uint32_t>(l), first_head, r.into);
    }
    if (!status.ok()) return Fail(status);
    if (head_count == geometry.kv_heads) {
      plan.pieces.push_back(
          {{block, geometry.entry_offset(r.first_layer, HeadIndex(0)), r.layers * layer_bytes},
           r.into});
    } else {
      for (uint32_t l = 0; l < r.layers; ++l) {
        const LayerIndex layer(static_cast<uint32_t>(first) + l);
        plan.pieces.push_back(
            {{block, geometry.entry_offset(layer, HeadIndex(first_head)), layer_bytes},
             r.into + uint64_t{l} * layer_bytes});
      }
    }
    if (checksums_.empty()) continue;
    for (uint32_t l = 0; l < r.layers; ++l) {
      for (uint32_t h = 0; h < head_count; ++h) {
        AddEntryCheck(&plan, i, block, static_cast<uint32_t>(first) + l, first_head + h,
                      r.into + (uint64_t{l} * head_count + h) * entry);
      }
    }
  }
  return Start(std::move(plan), deadline);
}

absl::Status Reader::Impl::FetchSummaries(BlockIndex first, uint32_t count, std::byte* into,
                                          TimePoint deadline) {
  if (absl::Status usable = Usable(); !usable.ok()) return Fail(usable)->Wait();
  if (count == 0) return absl::OkStatus();
  if (uint64_t{first.value()} + count > blocks) {
    return Fail(MakeError(ErrorCode::kOutOfRange,
                          absl::StrFormat("summaries of %d blocks from %d; the sequence has %d",
                                          count, first.value(), blocks)))
        ->Wait();
  }
  FetchPlan plan;
  const uint32_t layer_bytes = head_count * geometry.summary_bytes();
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t block = first.value() + i;
    std::byte* at = into + uint64_t{i} * geometry.layers * layer_bytes;
    for (uint32_t l = 0; l < geometry.layers; ++l) {
      absl::Status status = CheckItem("summaries", i, block, l, first_head, into);
      if (!status.ok()) return Fail(status)->Wait();
      if (head_count == geometry.kv_heads) continue;
      plan.pieces.push_back(
          {{block, geometry.summary_offset(LayerIndex(l), HeadIndex(first_head)), layer_bytes},
           at + uint64_t{l} * layer_bytes});
    }
    if (head_count == geometry.kv_heads) {
      plan.pieces.push_back(
          {{block, geometry.summaries_offset(), geometry.layers * layer_bytes}, at});
    }
  }
  return Start(std::move(plan), deadline)->Wait();
}

absl::Status Reader::Impl::FetchTopK(LayerIndex layer, HeadIndex head,
                                     std::span<const int32_t> list, std::byte* into, int64_t stride,
                                     TimePoint deadline) {
  if (absl::Status usable = Usable(); !usable.ok()) return Fail(usable)->Wait();
  FetchPlan plan;
  std::unordered_map<int32_t, std::byte*> first_place;
  for (size_t i = 0; i < list.size(); ++i) {
    const int32_t block = list[i];
    if (block == -1) continue;
    absl::Status status;
    if (block < 0) {
      status = MakeError(ErrorCode::kOutOfRange,
                         absl::StrFormat("blocks[%d] is %d; a block number or -1 for padding is "
                                         "expected",
                                         i, block));
    } else {
      status =
          CheckItem("blocks", i, static_cast<uint32_t>(block), layer.value(), head.value(), into);
    }
    if (!status.ok()) return Fail(status)->Wait();
    std::byte* at = into + static_cast<int64_t>(i) * stride;
    const auto [known, is_new] = first_place.emplace(block, at);
    if (!is_new) {
      plan.copies.push_back({known->second, at});
      continue;
    }
    plan.pieces.push_back(
        {{static_cast<uint32_t>(block), geometry.entry_offset(layer, head), geometry.entry_bytes()},
         at});
    AddEntryCheck(&plan, i, static_cast<uint32_t>(block), layer.value(), head.value(), at);
  }
  return Start(std::move(plan), deadline)->Wait();
}

absl::Status Reader::Impl::Release() {
  if (right_->released.exchange(true)) return absl::OkStatus();
  right_->core->keeper().Drop(*right_->grant);
  std::vector<std::weak_ptr<FetchState>> in_flight;
  {
    MutexLock lock(mutex_);
    in_flight.swap(in_flight_);
  }
  for (const auto& weak : in_flight) {
    if (auto state = weak.lock()) state->CancelFromRelease();
  }
  // A grant that the daemon has taken back already needs no Release.
  if (right_->grant->lost() || right_->session->restarted()) return absl::OkStatus();
  const client::GrantKey key = right_->grant->key();
  return Annotate(
      right_->session->control().Release(std::span(&key, 1), right_->core->options().rpc_timeout),
      "release (the grant ends with its lease)");
}

Reader::Reader(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Reader::Reader(Reader&&) noexcept = default;
Reader& Reader::operator=(Reader&&) noexcept = default;
absl::StatusOr<LocalFrames> Reader::Impl::Frames() const {
  OASISKV_RETURN_IF_ERROR(Usable());
  OASISKV_ASSIGN_OR_RETURN(fabric::LocalMemory memory,
                           right_->session->reader().Local(*right_->view));
  return LocalFrames{.frames = std::move(memory.frames),
                     .grant_word = memory.word,
                     .epoch = right_->view->epoch.value(),
                     .mappings = std::move(memory.mappings),
                     .keep = right_->session};
}

Reader::~Reader() = default;

Reader::TimePoint Reader::DefaultDeadline() const { return impl_->DefaultDeadline(); }
std::unique_ptr<PendingFetch> Reader::FetchEntries(std::span<const EntryRead> entries,
                                                   TimePoint deadline) {
  return impl_->FetchEntries(entries, deadline);
}
std::unique_ptr<PendingFetch> Reader::FetchLayers(std::span<const LayerRead> layers,
                                                  TimePoint deadline) {
  return impl_->FetchLayers(layers, deadline);
}
absl::Status Reader::FetchSummaries(BlockIndex first, uint32_t count, std::byte* into,
                                    TimePoint deadline) {
  return impl_->FetchSummaries(first, count, into, deadline);
}
absl::Status Reader::FetchTopK(LayerIndex layer, HeadIndex head, std::span<const int32_t> blocks,
                               std::byte* into, int64_t stride, TimePoint deadline) {
  return impl_->FetchTopK(layer, head, blocks, into, stride, deadline);
}
absl::StatusOr<RegisteredBuffer> Reader::RegisterBuffer(std::span<std::byte> memory) {
  return impl_->RegisterBuffer(memory);
}
absl::StatusOr<LocalFrames> Reader::Frames() const { return impl_->Frames(); }
absl::Status Reader::Release() { return impl_->Release(); }
const Geometry& Reader::geometry() const { return impl_->geometry; }
uint32_t Reader::first_head() const { return impl_->first_head; }
uint32_t Reader::head_count() const { return impl_->head_count; }
bool Reader::sealed() const { return impl_->sealed; }
uint64_t Reader::token_count() const { return impl_->token_count; }
uint32_t Reader::blocks() const { return impl_->blocks; }
bool Reader::local() const { return impl_->local; }
bool Reader::IsCommitted(LayerIndex layer, BlockIndex block) const {
  return layer.value() < impl_->geometry.layers && block.value() < impl_->blocks &&
         impl_->committed.Has(layer.value(), block.value());
}
uint32_t Reader::first_topk_k() const { return impl_->first_topk_k; }
std::span<const int32_t> Reader::first_topk() const { return impl_->first_topk; }
const std::string& Reader::blob() const { return impl_->blob; }
absl::Status Reader::Health() const { return impl_->Health(); }

absl::StatusOr<Reader> Client::Attach(const ReaderSpec& spec) {
  client::Core& core = *impl_->core;
  OASISKV_RETURN_IF_ERROR(spec.geometry.Validate());
  const Duration timeout = core.options().rpc_timeout;
  const MonotonicTime wait_end = Clock::Real().Now() + std::max(spec.wait_for_seal, Duration(0));
  const CallToken token = client::DrawToken();
  std::shared_ptr<Reader::Impl> made;
  const auto call_daemon = [&](const std::shared_ptr<client::Session>& session) -> absl::Status {
    client::AttachCall call;
    call.name = spec.name;
    call.identity = spec.identity;
    call.geometry = spec.geometry;
    call.first_head = spec.first_head;
    call.head_count = spec.head_count;
    call.lease = core.LeaseOr(spec.lease);
    call.token = token;
    if (spec.wait_for_seal > Duration(0)) {
      // A second session gets only what is left of the wait.
      call.wait_for_seal = std::max(wait_end - Clock::Real().Now(), Duration(Millis(1)));
    }
    OASISKV_ASSIGN_OR_RETURN(client::Attached attached, session->control().Attach(call, timeout));
    OASISKV_RETURN_IF_ERROR(session->VerifyGrant(attached.grant.key.id, timeout));
    // A lease counts from the moment the call was sent, and this call may have waited for a
    // seal: it is renewed before the reader is handed out.
    client::GivenGrant& given = attached.grant;
    if (Clock::Real().Now() - given.sent > given.lease / 4) {
      OASISKV_ASSIGN_OR_RETURN(
          client::Renewed renewed,
          session->control().Renew(std::span(&given.key, 1), call.lease, timeout));
      if (!renewed.lost.empty()) {
        return MakeError(renewed.lost.front().reason,
                         "the grant was lost before the attach was over; attach again");
      }
      given.sent = renewed.sent;
      given.lease = renewed.lease;
    }
    auto grant = core.keeper().Hold(session, given, call.lease, client::GrantRole::kReader);
    made = std::make_shared<Reader::Impl>(impl_->core, session, std::move(grant), spec,
                                          std::move(attached));
    return absl::OkStatus();
  };
  OASISKV_RETURN_IF_ERROR(core.OnSession(wait_end + timeout, call_daemon));
  return Reader(std::move(made));
}

}  // namespace oasiskv
