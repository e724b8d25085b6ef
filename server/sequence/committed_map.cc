#include "server/sequence/committed_map.h"

#include <algorithm>
#include <bit>

namespace oasiskv::server {
namespace {

// The bits of word `word` that belong to layers [first, last].
uint64_t Mask(uint32_t word, uint32_t first, uint32_t last) {
  uint64_t mask = ~uint64_t{0};
  if (word == first / 64) mask &= ~uint64_t{0} << (first % 64);
  if (word == last / 64) mask &= ~uint64_t{0} >> (63 - last % 64);
  return mask;
}

}  // namespace

void CommittedMap::Resize(uint32_t blocks) {
  const size_t size = size_t{blocks} * words_;
  if (size > bits_.capacity()) bits_.reserve(std::max(size, bits_.size() + bits_.size() / 4));
  bits_.resize(size, 0);
}

void CommittedMap::Set(const LayerBlocks& range) {
  if (range.layer_count == 0) return;
  const uint32_t first = range.first_layer;
  const uint32_t last = first + range.layer_count - 1;
  for (uint32_t b = range.first_block; b < range.first_block + range.block_count; ++b) {
    uint64_t* row = &bits_[size_t{b} * words_];
    for (uint32_t w = first / 64; w <= last / 64; ++w) {
      const uint64_t fresh = Mask(w, first, last) & ~row[w];
      row[w] |= fresh;
      count_ += static_cast<uint64_t>(std::popcount(fresh));
    }
  }
}

std::optional<uint32_t> CommittedMap::FirstMissing(uint32_t block, uint32_t first,
                                                   uint32_t last) const {
  return Find(block, first, last, false);
}

std::optional<uint32_t> CommittedMap::FirstCommitted(uint32_t block, uint32_t first,
                                                     uint32_t last) const {
  return Find(block, first, last, true);
}

std::optional<uint32_t> CommittedMap::Find(uint32_t block, uint32_t first, uint32_t last,
                                           bool committed) const {
  const uint64_t* row = &bits_[size_t{block} * words_];
  for (uint32_t w = first / 64; w <= last / 64; ++w) {
    const uint64_t hits = (committed ? row[w] : ~row[w]) & Mask(w, first, last);
    if (hits != 0) return w * 64 + static_cast<uint32_t>(std::countr_zero(hits));
  }
  return std::nullopt;
}

std::optional<std::vector<LayerBlocks>> CommittedMap::Runs(size_t most) const {
  std::vector<LayerBlocks> out;
  const uint32_t blocks = static_cast<uint32_t>(bits_.size() / words_);
  for (uint32_t b = 0; b < blocks;) {
    const uint64_t* row = &bits_[size_t{b} * words_];
    uint32_t end = b + 1;
    while (end < blocks && std::equal(row, row + words_, &bits_[size_t{end} * words_])) ++end;
    uint32_t layer = 0;
    while (layer < layers_) {
      const std::optional<uint32_t> from = FirstCommitted(b, layer, layers_ - 1);
      if (!from) break;
      const uint32_t to = FirstMissing(b, *from, layers_ - 1).value_or(layers_);
      if (out.size() == most) return std::nullopt;
      out.push_back({*from, to - *from, b, end - b});
      layer = to;
    }
    b = end;
  }
  return out;
}

}  // namespace oasiskv::server
