#include "client/producer/frame_stage.h"

#include <algorithm>
#include <cstring>

#include "client/selection/summary.h"

namespace oasiskv::client {
namespace {

// Large enough to make a batch worth its round trip, small enough to stay in a cache.
constexpr uint64_t kStageBytes = uint64_t{1} << 20;

// The halves of an entry: keys and values, or the one latent array.
uint32_t Halves(const Geometry& geometry) { return geometry.packing == Packing::kLatent ? 1 : 2; }

}  // namespace

FrameStage::FrameStage(const Geometry& geometry)
    : geometry_(geometry),
      capacity_(static_cast<uint32_t>(
          std::max<uint64_t>(1, kStageBytes / geometry.layer_entries_bytes()))) {}

FrameStage::Slot FrameStage::Add(uint32_t layer, uint32_t block) {
  if (entries_.empty()) {
    entries_.resize(uint64_t{capacity_} * geometry_.layer_entries_bytes());
    summaries_.resize(uint64_t{capacity_} * geometry_.layer_summaries_bytes());
  }
  const uint64_t n = slots_.size();
  slots_.push_back({layer, block, entries_.data() + n * geometry_.layer_entries_bytes(),
                    summaries_.data() + n * geometry_.layer_summaries_bytes()});
  return slots_.back();
}

std::vector<fabric::WritePiece> FrameStage::Pieces() const {
  std::vector<fabric::WritePiece> pieces;
  pieces.reserve(2 * slots_.size());
  for (const Slot& slot : slots_) {
    const LayerIndex layer(slot.layer);
    pieces.push_back(
        {{slot.block, geometry_.entry_offset(layer, HeadIndex(0)), geometry_.layer_entries_bytes()},
         slot.entries});
    pieces.push_back({{slot.block, geometry_.summary_offset(layer, HeadIndex(0)),
                       geometry_.layer_summaries_bytes()},
                      slot.summaries});
  }
  return pieces;
}

void PackTokens(const Geometry& geometry, const KvView& keys, const KvView& values, uint64_t first,
                uint32_t tokens, std::byte* entries, uint32_t at) {
  const uint32_t row = geometry.key_bytes();
  for (uint32_t half = 0; half < Halves(geometry); ++half) {
    const KvView& view = half == 0 ? keys : values;
    for (uint32_t h = 0; h < geometry.kv_heads; ++h) {
      const std::byte* from = view.base + static_cast<int64_t>(first) * view.token_stride +
                              int64_t{h} * view.head_stride;
      std::byte* to = entries + uint64_t{h} * geometry.entry_bytes() +
                      uint64_t{half} * geometry.half_entry_bytes() + uint64_t{at} * row;
      for (uint32_t t = 0; t < tokens; ++t) {
        std::memcpy(to, from, row);
        to += row;
        from += view.token_stride;
      }
    }
  }
}

void CopyTokens(const Geometry& geometry, const std::byte* from, uint32_t tokens, std::byte* to) {
  const uint64_t bytes = uint64_t{tokens} * geometry.key_bytes();
  for (uint32_t i = 0; i < geometry.kv_heads * Halves(geometry); ++i) {
    const uint64_t offset = uint64_t{i} * geometry.half_entry_bytes();
    std::memcpy(to + offset, from + offset, bytes);
  }
}

void ZeroTail(const Geometry& geometry, uint32_t tokens, std::byte* entries) {
  const uint64_t used = uint64_t{tokens} * geometry.key_bytes();
  for (uint32_t i = 0; i < geometry.kv_heads * Halves(geometry); ++i) {
    std::memset(entries + uint64_t{i} * geometry.half_entry_bytes() + used, 0,
                geometry.half_entry_bytes() - used);
  }
}

void Summarise(const Geometry& geometry, const std::byte* entries, std::byte* summaries) {
  for (uint32_t h = 0; h < geometry.kv_heads; ++h) {
    SummariseKeys(geometry.element_type, geometry.head_dim,
                  entries + uint64_t{h} * geometry.entry_bytes(), geometry.key_bytes(),
                  geometry.block_tokens, summaries + uint64_t{h} * geometry.summary_bytes());
  }
}

}  // namespace oasiskv::client
