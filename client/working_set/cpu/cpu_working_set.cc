// Requests that come and go, decoded tokens, and what attention sees.
#include "client/working_set/cpu/cpu_working_set.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/selection/summary.h"
#include "client/working_set/cpu/admission.h"
#include "client/working_set/options.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv {

absl::StatusOr<std::unique_ptr<WorkingSet>> CpuWorkingSet::Create(
    const WorkingSetOptions& options) {
  OASISKV_ASSIGN_OR_RETURN(PagePool pool,
                           PagePool::Create(options.geometry, options.resident_blocks,
                                            options.max_requests, options.max_blocks));
  WorkingSetContext context{.options = options,
                            .group = options.query_heads / options.geometry.kv_heads,
                            .cap = FetchCap(options),
                            .pool = std::move(pool)};
  return std::unique_ptr<WorkingSet>(new CpuWorkingSet(std::move(context)));
}

CpuWorkingSet::CpuWorkingSet(WorkingSetContext context)
    : context_(std::move(context)),
      slots_(context_.options.max_requests),
      stats_(context_.options.max_requests),
      states_(size_t{context_.options.max_requests} * context_.options.geometry.layers),
      selector_(context_.options.max_blocks),
      ranker_(context_),
      pipeline_(context_, &staging_) {
  for (size_t i = 0; i < states_.size(); ++i) {
    states_[i].slot = static_cast<uint32_t>(i / context_.options.geometry.layers);
    states_[i].layer = static_cast<uint32_t>(i % context_.options.geometry.layers);
  }
}

absl::Status CpuWorkingSet::CheckRows(LayerIndex layer, std::span<const RequestSlot> slots) const {
  if (layer.value() >= context_.options.geometry.layers) {
    return MakeError(ErrorCode::kOutOfRange,
                     absl::StrFormat("layer %d is not one of the %d", layer.value(),
                                     context_.options.geometry.layers));
  }
  for (size_t i = 0; i < slots.size(); ++i) {
    const uint32_t slot = slots[i].value();
    if (slot >= slots_.size() || slots_[slot].source == nullptr) {
      return MakeError(ErrorCode::kInvalidArgument,
                       absl::StrFormat("row %d: slot %d holds no request; slots come from Admit "
                                       "and end with Leave",
                                       i, slot));
    }
    if (std::find(slots.begin(), slots.begin() + i, slots[i]) != slots.begin() + i) {
      return MakeError(ErrorCode::kInvalidArgument,
                       absl::StrFormat("row %d: slot %d is named twice", i, slot));
    }
  }
  return absl::OkStatus();
}

absl::Status CpuWorkingSet::CheckIdle(absl::string_view call, LayerIndex layer,
                                      std::span<const RequestSlot> slots) const {
  OASISKV_RETURN_IF_ERROR(CheckRows(layer, slots));
  for (RequestSlot slot : slots) {
    if (State(layer, slot).job == nullptr) continue;
    return MakeError(ErrorCode::kWrongState,
                     absl::StrFormat("%s(layer %d): slot %d has a transfer pending; the order of a "
                                     "step is Wait, Append, Resolve, Submit, View, AttentionDone",
                                     call, layer.value(), slot.value()));
  }
  return absl::OkStatus();
}

absl::Status CpuWorkingSet::CheckQueries(absl::string_view call, LayerIndex layer,
                                         std::span<const RequestSlot> slots, const float* queries) {
  if (slots.empty() || queries != nullptr) return absl::OkStatus();
  return MakeError(ErrorCode::kInvalidArgument,
                   absl::StrFormat("%s(layer %d): queries is null", call, layer.value()));
}

absl::StatusOr<RequestSlot> CpuWorkingSet::Admit(std::shared_ptr<EntrySource> source) {
  OASISKV_RETURN_IF_ERROR(CheckSource(context_.options, source.get()));
  const auto free = std::find_if(slots_.begin(), slots_.end(),
                                 [](const Slot& slot) { return slot.source == nullptr; });
  if (free == slots_.end()) {
    return MakeError(ErrorCode::kCapacity,
                     absl::StrFormat("Admit: all %d request slots are taken; Leave one or raise "
                                     "max_requests",
                                     slots_.size()));
  }
  const RequestSlot slot(static_cast<uint32_t>(free - slots_.begin()));
  const std::span<LayerState> states(&State(LayerIndex(0), slot), context_.options.geometry.layers);
  for (LayerState& state : states) state.Clear(context_.heads(), context_.resident());
  auto bytes = Admission(context_, *source, states, &staging_);
  if (!bytes.ok()) return Annotate(bytes.status(), "Admit");
  *free = {.source = std::move(source)};
  stats_.Reset(slot);
  stats_.Add(slot, {.admission_bytes = *bytes});
  return slot;
}

absl::Status CpuWorkingSet::Leave(RequestSlot slot) {
  OASISKV_RETURN_IF_ERROR(CheckRows(LayerIndex(0), std::span(&slot, 1)));
  for (uint32_t l = 0; l < context_.options.geometry.layers; ++l) {
    LayerState& state = State(LayerIndex(l), slot);
    if (state.job == nullptr) continue;
    const Outcome outcome = pipeline_.Drop(state.row);
    // What a dropped row would have become is nobody's matter any more, its errors neither.
    if (!outcome.dropped) Book(*state.row, outcome).IgnoreError();
  }
  pipeline_.WaitReleased(slot);
  for (uint32_t l = 0; l < context_.options.geometry.layers; ++l) {
    State(LayerIndex(l), slot).Clear(context_.heads(), context_.resident());
  }
  slots_[slot.value()] = Slot();
  return absl::OkStatus();
}

absl::Status CpuWorkingSet::Append(LayerIndex layer, std::span<const RequestSlot> slots,
                                   const std::byte* keys, const std::byte* values) {
  OASISKV_RETURN_IF_ERROR(CheckIdle("Append", layer, slots));
  const Geometry& geometry = context_.options.geometry;
  const bool latent = geometry.packing == Packing::kLatent;
  if (!slots.empty() && (keys == nullptr || (values == nullptr && !latent))) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrFormat("Append(layer %d): %s is null", layer.value(),
                                     keys == nullptr ? "keys" : "values"));
  }
  for (RequestSlot slot : slots) {
    const LayerState& state = State(layer, slot);
    if (LocalFull(state)) {
      return MakeError(ErrorCode::kWrongState,
                       absl::StrFormat("Append(layer %d): slot %d's local block is full; "
                                       "AttentionDone and Wait promote it",
                                       layer.value(), slot.value()));
    }
    if (state.complete >= context_.options.max_blocks) {
      return MakeError(ErrorCode::kCapacity,
                       absl::StrFormat("Append(layer %d): slot %d holds max_blocks (%d) blocks",
                                       layer.value(), slot.value(), context_.options.max_blocks));
    }
  }
  const uint64_t key_bytes = geometry.key_bytes();
  for (RequestSlot slot : slots) {
    LayerState& state = State(layer, slot);
    const uint64_t at = state.local_tokens * key_bytes;
    ++state.local_tokens;
    for (uint32_t h = 0; h < context_.heads(); ++h) {
      std::byte* entry = context_.pool.Page(layer.value(), slot.value(), h, context_.resident());
      std::memcpy(entry + at, keys, key_bytes);
      keys += key_bytes;
      if (!latent) {
        std::memcpy(entry + geometry.half_entry_bytes() + at, values, key_bytes);
        values += key_bytes;
      }
      if (!LocalFull(state)) continue;
      std::byte* const summary = context_.pool.Summaries(layer.value(), slot.value(), h) +
                                 uint64_t{state.complete} * geometry.summary_bytes();
      SummariseKeys(geometry.element_type, geometry.head_dim, entry,
                    static_cast<int64_t>(key_bytes), geometry.block_tokens, summary);
      RoundSummary(context_.options, summary);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ResidentView> CpuWorkingSet::View(LayerIndex layer, RequestSlot slot) const {
  OASISKV_RETURN_IF_ERROR(CheckRows(layer, std::span(&slot, 1)));
  const LayerState& state = State(layer, slot);
  if (state.job != nullptr && state.row->attention_done) {
    return MakeError(ErrorCode::kWrongState,
                     absl::StrFormat("View(layer %d): slot %d's pages may be changing; Wait first",
                                     layer.value(), slot.value()));
  }
  return ResidentView{.pages = context_.pool.Pages(layer.value(), slot.value()),
                      .map = state.map.data(),
                      .local_tokens = state.local_tokens,
                      .local_block = BlockIndex(state.complete)};
}

}  // namespace oasiskv
