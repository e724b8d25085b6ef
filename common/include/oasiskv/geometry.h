// The shape of one shard's KV and where everything lies in a frame.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "oasiskv/export.h"
#include "oasiskv/ids.h"

namespace oasiskv {

// Values equal those of oasiskv.v1.ElementType.
enum class ElementType : uint8_t { kUnspecified = 0, kFloat16 = 1, kBFloat16 = 2, kFloat32 = 3 };
// Values equal those of oasiskv.v1.Packing. kKeyThenValue: an entry is block_tokens keys, then
// block_tokens values. kLatent (MLA): an entry is block_tokens latent vectors, which serve as key
// and as value; there is one head.
enum class Packing : uint8_t { kUnspecified = 0, kKeyThenValue = 1, kLatent = 2 };

OASISKV_EXPORT uint32_t ElementBytes(ElementType type);
OASISKV_EXPORT absl::string_view ElementTypeName(ElementType type);
OASISKV_EXPORT absl::string_view PackingName(Packing packing);

// Thread contract: a plain value.
//
// One frame holds one block:
//   entries [layer][head]    each K[block_tokens][head_dim], then V[block_tokens][head_dim]
//                            (one array for kLatent)
//   summaries [layer][head]  each min[head_dim], then max[head_dim] of the entry's keys (latents)
// All in element_type. Offsets are in bytes from the frame's start and are computed, never listed.
struct OASISKV_EXPORT Geometry {
  uint32_t layers = 0;
  uint32_t kv_heads = 0;  // of this shard; 1 for kLatent
  uint32_t head_dim = 0;  // elements of one key (one latent vector for kLatent)
  uint32_t block_tokens = 16;
  ElementType element_type = ElementType::kUnspecified;
  Packing packing = Packing::kKeyThenValue;
  uint32_t first_head = 0;      // the model's number of this shard's head 0
  uint32_t total_kv_heads = 0;  // of the model, over all shards

  // INVALID_ARGUMENT naming the field, its value and the range; also when a frame would be larger
  // than kMaxFrameBytes.
  absl::Status Validate() const;
  // *this is the sequence's. GEOMETRY_MISMATCH naming the first field that differs and both values.
  absl::Status CheckSame(const Geometry& asked) const;

  // One token, one head.
  uint32_t key_bytes() const { return head_dim * ElementBytes(element_type); }
  // All K (or all V) of an entry.
  uint32_t half_entry_bytes() const { return block_tokens * key_bytes(); }
  uint32_t entry_bytes() const {
    return packing == Packing::kLatent ? half_entry_bytes() : 2 * half_entry_bytes();
  }
  uint32_t summary_bytes() const { return 2 * key_bytes(); }
  uint32_t layer_entries_bytes() const { return kv_heads * entry_bytes(); }
  uint32_t layer_summaries_bytes() const { return kv_heads * summary_bytes(); }
  uint32_t entry_offset(LayerIndex layer, HeadIndex head) const {
    return (layer.value() * kv_heads + head.value()) * entry_bytes();
  }
  uint32_t summaries_offset() const { return layers * layer_entries_bytes(); }
  uint32_t summary_offset(LayerIndex layer, HeadIndex head) const {
    return summaries_offset() + (layer.value() * kv_heads + head.value()) * summary_bytes();
  }
  // Bytes of a frame that are used; the pool allocates frame_stride().
  uint32_t frame_bytes() const {
    return layers * (layer_entries_bytes() + layer_summaries_bytes());
  }
  uint64_t frame_stride() const;
  // Blocks that hold `tokens` tokens; the last one may be partly filled.
  uint32_t BlocksFor(uint64_t tokens) const {
    return static_cast<uint32_t>((tokens + block_tokens - 1) / block_tokens);
  }

  std::string ToString() const;
  friend bool operator==(const Geometry&, const Geometry&) = default;

  static constexpr uint64_t kMaxFrameBytes = uint64_t{1} << 30;
  static constexpr uint64_t kFrameAlignment = 4096;
};

// What a sequence's KV belongs to. Sequences of different identities never mix, even of one shape.
struct OASISKV_EXPORT Identity {
  std::string model;     // e.g. "Qwen/Qwen3-8B"
  std::string revision;  // e.g. a commit hash of the weights
  std::string tenant;    // isolation domain; may be empty

  // IDENTITY_MISMATCH naming the field and both values.
  absl::Status CheckSame(const Identity& asked) const;
  friend bool operator==(const Identity&, const Identity&) = default;
};

}  // namespace oasiskv
