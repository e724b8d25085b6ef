// Where block-layers are put together before they are written to their frames.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/fabric/fabric.h"
#include "oasiskv/geometry.h"
#include "oasiskv/producer.h"

namespace oasiskv::client {

// Thread contract: not safe for concurrent use.
//
// Holds up to capacity() block-layers: the entries of all heads as they lie in the frame, and their
// summaries. Each becomes two pieces of one batch.
class FrameStage {
 public:
  explicit FrameStage(const Geometry& geometry);

  struct Slot {
    uint32_t layer = 0, block = 0;
    std::byte* entries = nullptr;    // layer_entries_bytes()
    std::byte* summaries = nullptr;  // layer_summaries_bytes()
  };

  uint32_t capacity() const { return capacity_; }
  bool full() const { return slots_.size() == capacity_; }
  bool empty() const { return slots_.empty(); }
  // Pre-condition: not full. Contents are undefined.
  Slot Add(uint32_t layer, uint32_t block);
  std::span<const Slot> slots() const { return slots_; }
  std::vector<fabric::WritePiece> Pieces() const;
  void Clear() { slots_.clear(); }

 private:
  const Geometry geometry_;
  const uint32_t capacity_;
  std::vector<std::byte> entries_, summaries_;  // grown with use
  std::vector<Slot> slots_;
};

// Copies `tokens` tokens of the caller's layout, starting at its token `first`, into entries [head]
// of one block-layer, from token `at` on.
void PackTokens(const Geometry& geometry, const KvView& keys, const KvView& values, uint64_t first,
                uint32_t tokens, std::byte* entries, uint32_t at);
// Copies the first `tokens` tokens of a block-layer to another.
void CopyTokens(const Geometry& geometry, const std::byte* from, uint32_t tokens, std::byte* to);
// Zeroes the tokens from `tokens` on.
void ZeroTail(const Geometry& geometry, uint32_t tokens, std::byte* entries);
// Summaries [head] of a complete block-layer.
void Summarise(const Geometry& geometry, const std::byte* entries, std::byte* summaries);

}  // namespace oasiskv::client
