// KV whose every 8 bytes say whose they are.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/selection/summary.h"
#include "oasiskv/geometry.h"
#include "tests/support/shapes.h"

namespace oasiskv::testing {

// Small entries, so that frames change hands often.
inline Geometry SoakGeometry() { return Shape(2, 4, 64); }

// Thread contract: a plain value.
//
// One life of one sequence: names are used again and again, generations never.
struct Owner {
  uint32_t slot = 0;        // the sequence's name, below 64
  uint32_t generation = 0;  // below 2^21

  std::string Name() const { return absl::StrCat("s", slot); }
  std::string ToBlob() const { return absl::StrCat(slot, " ", generation); }
  static bool FromBlob(const std::string& blob, Owner* owner) {
    const std::vector<std::string> parts = absl::StrSplit(blob, ' ');
    return parts.size() == 2 && absl::SimpleAtoi(parts[0], &owner->slot) &&
           absl::SimpleAtoi(parts[1], &owner->generation);
  }
  friend bool operator==(const Owner&, const Owner&) = default;
};

// Four lanes of 14 bits in the elements' 16: no element is infinite or NaN.
inline uint64_t Word(const Owner& owner, uint32_t block, uint32_t layer, uint32_t head,
                     uint32_t index) {
  const std::array<uint16_t, 4> lanes = {
      static_cast<uint16_t>(owner.generation & 0x3fff),
      static_cast<uint16_t>(owner.slot << 8 | layer << 4 | head),
      static_cast<uint16_t>((owner.generation >> 14) << 7 | block), static_cast<uint16_t>(index)};
  uint64_t word = 0;
  std::memcpy(&word, lanes.data(), sizeof(word));
  return word;
}

inline std::string Explain(uint64_t word) {
  std::array<uint16_t, 4> lanes;
  std::memcpy(lanes.data(), &word, sizeof(word));
  return absl::StrCat("slot ", lanes[1] >> 8, " generation ",
                      uint32_t{lanes[2]} >> 7 << 14 | lanes[0], " block ", lanes[2] & 0x7f,
                      " layer ", lanes[1] >> 4 & 15, " head ", lanes[1] & 15, " word ", lanes[3]);
}

inline void FillEntry(const Owner& owner, uint32_t block, uint32_t layer, uint32_t head,
                      std::span<std::byte> entry) {
  for (uint32_t i = 0; i < entry.size() / sizeof(uint64_t); ++i) {
    const uint64_t word = Word(owner, block, layer, head, i);
    std::memcpy(entry.data() + i * sizeof(word), &word, sizeof(word));
  }
}

// Empty when every byte is right.
inline std::string WrongIn(const Owner& owner, uint32_t block, uint32_t layer, uint32_t head,
                           std::span<const std::byte> entry) {
  for (uint32_t i = 0; i < entry.size() / sizeof(uint64_t); ++i) {
    uint64_t found = 0;
    std::memcpy(&found, entry.data() + i * sizeof(found), sizeof(found));
    const uint64_t want = Word(owner, block, layer, head, i);
    if (found != want) {
      return absl::StrCat("found ", Explain(found), " where ", Explain(want), " belongs");
    }
  }
  return "";
}

inline bool SummaryIsRight(const Owner& owner, uint32_t block, uint32_t layer, uint32_t head,
                           std::span<const std::byte> summary) {
  const Geometry g = SoakGeometry();
  std::vector<std::byte> entry(g.entry_bytes()), want(g.summary_bytes());
  FillEntry(owner, block, layer, head, entry);
  SummariseKeys(g.element_type, g.head_dim, entry.data(), g.key_bytes(), g.block_tokens,
                want.data());
  return std::memcmp(summary.data(), want.data(), want.size()) == 0;
}

}  // namespace oasiskv::testing
