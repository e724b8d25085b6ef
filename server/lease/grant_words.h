// The table of grant words in shared memory, and the epochs that they hold.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>

#include "absl/status/statusor.h"
#include "common/fabric/fabric.h"
#include "common/mapped_memory.h"
#include "oasiskv/ids.h"

namespace oasiskv::server {

// 64 bits nobody can guess.
uint64_t RandomBits();

// Thread contract: Read is safe for concurrent use; everything else is guarded by the core's mutex.
//
// An epoch is 54 random bits, so that nobody can guess another's grant. Its top bit is 0 and a
// revoked word's is 1, so no epoch looks like a revocation. A slot keeps its last
// word until a later epoch takes it over, and the slot that has been free longest is taken first: a
// slow reader is told "expired" for as long as that can be known.
class GrantWords {
 public:
  static constexpr int kEpochBits = 55;

  static absl::StatusOr<GrantWords> Create(uint32_t slots);

  std::optional<WordSlot> TakeSlot();
  void GiveSlot(WordSlot slot) { free_.push_back(slot); }
  uint32_t slots_free() const { return static_cast<uint32_t>(free_.size()); }

  // Differs from every epoch of the slot that is still remembered but for a chance of 2^-54 each.
  static Epoch DrawEpoch() { return Epoch(1 + (RandomBits() >> (64 - kEpochBits + 1))); }

  void Publish(WordSlot slot, Epoch epoch);
  // The word changes before this returns; only then may a frame of the grant be let go.
  void Revoke(WordSlot slot, fabric::RevokeReason reason, Epoch epoch);
  uint64_t Read(WordSlot slot) const;

  int fd() const { return fd_.get(); }
  uint64_t bytes() const { return mapping_.size(); }

 private:
  GrantWords() = default;

  UniqueFd fd_;
  Mapping mapping_;
  std::span<std::atomic<uint64_t>> words_;
  std::deque<WordSlot> free_;  // longest free first
};

}  // namespace oasiskv::server
