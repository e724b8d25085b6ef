// All grants of the daemon: who may touch which frames until when, and what still holds memory
// after a grant's end.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/fabric/fabric.h"
#include "oasiskv/ids.h"
#include "server/lease/grant_words.h"
#include "server/pool/slab_allocator.h"
#include "server/sequence/sequence.h"

namespace oasiskv::server {

enum class GrantEnd : uint8_t { kReleased, kSealed, kExpired, kAborted };

// Thread contract: guarded by the core's mutex.
struct Grant {
  //   kLive     readers may use it
  //   kRevoked  the word has changed; the second step of its end is still to come
  //   kHolding  that step is done; a fence or a request in flight still holds the frames
  // After that it is gone.
  enum class Phase : uint8_t { kLive, kRevoked, kHolding };

  GrantId id;
  Epoch epoch;
  WordSlot slot;
  fabric::Access access = fabric::Access::kRead;
  Sequence* sequence = nullptr;  // null once revoked
  std::shared_ptr<const SequenceBody> body;
  uint32_t frames = 0;  // it holds one reference on each of body->frames[0, frames)
  uint32_t first_head = 0, head_count = 0;
  std::string holder;
  ConnectionId connection;  // of a writer that has the memory mapped; else zero
  Duration expires{0};      // served time
  Phase phase = Phase::kLive;
  bool fenced = true;  // no write of the holder can come any more once the grant is revoked
  bool quarantined = false;
  Duration quarantined_at{0};  // served time
  uint32_t pins = 0;           // requests that the daemon is answering
  CallToken token;             // of the call that made it
  uint32_t answers = 1;        // calls and repeats that were told of it
  uint64_t sealed_as = 0;      // what a writer's seal said, as a hash

  bool writer() const { return access == fabric::Access::kWrite; }
  std::span<const Frame> held() const { return std::span(body->frames).first(frames); }
};

// Thread contract: not safe for concurrent use (the core's mutex guards it), except
// GrantWords::Read.
//
// Ending a grant takes two steps, between which the core lets go of its mutex: Revoke changes the
// word, LetGo gives up the frames. A writer that has the memory mapped (connection != 0) keeps its
// frames in quarantine after that, until the writer has fenced itself or its connection is closed:
// the daemon cannot take a mapping away.
class GrantTable {
 public:
  static absl::StatusOr<std::unique_ptr<GrantTable>> Create(uint32_t max_grants,
                                                            SlabAllocator& allocator);

  // CAPACITY naming --max_grants when Give would find no slot.
  absl::Status CheckRoom() const;
  // Takes the spec's sequence, access, frames (and a reference on each), heads, holder, connection
  // and expiry; fills in the rest and publishes the word. CheckRoom must have passed.
  Grant& Give(Grant spec);
  // The writer's grant now holds body->frames[0, frames) too.
  void Grow(Grant& grant, uint32_t frames);
  void Prolong(Grant& grant, Duration expires);

  // The live grant, or why there is none: NOT_FOUND, STALE, LEASE_EXPIRED; WRONG_STATE with
  // kWrongState where the grant ended by sealing its sequence.
  enum class AfterSeal { kStale, kWrongState };
  absl::StatusOr<Grant*> Find(GrantId id, Epoch epoch, AfterSeal after_seal = AfterSeal::kStale);
  // What the seal that ended that writer's grant said, as a hash; 0 when no seal ended it, or it is
  // forgotten.
  uint64_t SealedAs(GrantId id, Epoch epoch) const;
  // The grant that a call with this token made, in any phase; null when it is gone.
  Grant* FindToken(CallToken token) const;
  std::vector<Grant*> OfSequence(SequenceId id) const;
  // Up to `limit` live grants whose lease has ended at `served`.
  std::vector<Grant*> Expired(Duration served, size_t limit) const;
  // Live and quarantined grants, in the order of ids.
  const absl::btree_map<GrantId, std::unique_ptr<Grant>>& all() const { return by_id_; }

  void Revoke(Grant& grant, GrantEnd end);
  // `served`: the time now.
  void LetGo(Grant& grant, Duration served);
  void Pin(Grant& grant) { ++grant.pins; }
  void Unpin(Grant& grant);

  void Fenced(ConnectionId connection, GrantId id);
  void ConnectionOpened(ConnectionId connection) { connections_.insert(connection); }
  void ConnectionClosed(ConnectionId connection);
  // False when no peer has that connection (any more): nobody would ever lift a quarantine for it.
  bool IsOpen(ConnectionId connection) const { return connections_.contains(connection); }
  // Connections that a quarantine has waited for since `served` or longer, each once.
  std::vector<ConnectionId> UnfencedSince(Duration served) const;

  // The word of a live grant, or of one that ended not long ago, as a reader sees it; else 0.
  uint64_t Word(GrantId id) const;
  const GrantWords& words() const { return words_; }
  uint64_t readers() const { return readers_; }
  uint64_t writers() const { return writers_; }

 private:
  // What is remembered of an ended grant, the last max_grants of them.
  struct Ended {
    Epoch epoch;
    WordSlot slot;
    GrantEnd end;
    uint64_t sealed_as = 0;
  };

  GrantTable(GrantWords words, uint32_t max_grants, SlabAllocator& allocator);
  void Remember(const Grant& grant, GrantEnd end);
  // Gives the frames up when nothing holds them any more; the grant is gone then.
  void DropIfFree(Grant& grant);

  GrantWords words_;
  const uint32_t max_grants_;
  SlabAllocator& allocator_;  // outlives the table
  const uint64_t first_id_;   // its high half is drawn at start, its low half is 1
  uint64_t next_id_ = first_id_;
  uint64_t readers_ = 0, writers_ = 0;  // live
  absl::btree_map<GrantId, std::unique_ptr<Grant>> by_id_;
  absl::btree_set<std::pair<Duration, GrantId>> by_expiry_;          // live
  absl::btree_set<std::pair<SequenceId, GrantId>> by_sequence_;      // live
  absl::btree_set<std::pair<ConnectionId, GrantId>> by_connection_;  // not fenced
  absl::btree_set<std::pair<Duration, GrantId>> by_quarantine_;      // quarantined
  absl::flat_hash_map<CallToken, GrantId> by_token_;
  absl::flat_hash_map<GrantId, Ended> ended_;
  std::deque<GrantId> ended_order_;
  absl::flat_hash_set<ConnectionId> connections_;  // bounded by the endpoint's limit of connections
};

}  // namespace oasiskv::server
