// Strong types for every number that crosses an interface, so that a slot cannot be passed where a
// block is meant.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <ostream>
#include <utility>

namespace oasiskv {

// Thread contract: a plain value.
//
// A number with a meaning, which Tag names. Ids of different tags do not convert into each other.
template <typename Tag, typename Rep>
class Id {
 public:
  using rep = Rep;

  constexpr Id() = default;
  constexpr explicit Id(Rep value) : value_(value) {}

  constexpr Rep value() const { return value_; }
  // clang-tidy 14 takes the defaulted comparison for one with a pointer.
  friend constexpr auto operator<=>(Id, Id) = default;  // NOLINT(modernize-use-nullptr)

  template <typename H>
  friend H AbslHashValue(H h, Id id) {
    return H::combine(std::move(h), id.value_);
  }
  friend std::ostream& operator<<(std::ostream& os, Id id) { return os << +id.value_; }

 private:
  Rep value_ = 0;
};

// A sequence of one daemon; unique while the daemon lives. Zero is never given out.
using SequenceId = Id<struct SequenceIdTag, uint64_t>;
// A grant of one daemon; unique over restarts (the high half is random, chosen at start). Zero is
// never given out.
using GrantId = Id<struct GrantIdTag, uint64_t>;
// What the grant word holds while the grant is valid; never reused by one daemon. Zero is never
// given out.
using Epoch = Id<struct EpochTag, uint64_t>;
// One client's data connection to one daemon (an unguessable token).
using ConnectionId = Id<struct ConnectionIdTag, uint64_t>;
// An arena of the pool, counted from 0.
using ArenaId = Id<struct ArenaIdTag, uint16_t>;
// Index of a grant's word in the grant-word table.
using WordSlot = Id<struct WordSlotTag, uint32_t>;
// A block's position in its sequence, counted from 0.
using BlockIndex = Id<struct BlockIndexTag, uint32_t>;
// A layer of the model, counted from 0.
using LayerIndex = Id<struct LayerIndexTag, uint32_t>;
// A KV head of one shard, counted from 0 within the shard.
using HeadIndex = Id<struct HeadIndexTag, uint32_t>;
// A request slot of a WorkingSet, counted from 0.
using RequestSlot = Id<struct RequestSlotTag, uint32_t>;

// Where a frame starts: an arena and the offset in it, in bytes. Packs into 64 bits for the wire
// (16 + 48).
struct FrameAddress {
  ArenaId arena;
  uint64_t offset = 0;

  static constexpr int kOffsetBits = 48;
  constexpr uint64_t Pack() const {
    return (static_cast<uint64_t>(arena.value()) << kOffsetBits) | offset;
  }
  static constexpr FrameAddress Unpack(uint64_t packed) {
    return {ArenaId(static_cast<uint16_t>(packed >> kOffsetBits)),
            packed & ((uint64_t{1} << kOffsetBits) - 1)};
  }
  // NOLINTNEXTLINE(modernize-use-nullptr): as above
  friend constexpr auto operator<=>(const FrameAddress&, const FrameAddress&) = default;
};

}  // namespace oasiskv

template <typename Tag, typename Rep>
struct std::hash<oasiskv::Id<Tag, Rep>> {
  size_t operator()(oasiskv::Id<Tag, Rep> id) const noexcept {
    return std::hash<Rep>{}(id.value());
  }
};
