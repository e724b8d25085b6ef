// The daemon without its network: sequences, grants and memory behind plain calls. server/service
// translates gRPC to it, the fabrics ask it through fabric::GrantAuthority.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/fabric/endpoint.h"
#include "common/log.h"
#include "common/mutex.h"
#include "server/core/types.h"
#include "server/lease/grant_table.h"
#include "server/lease/served_clock.h"
#include "server/pool/pool.h"
#include "server/pool/slab_allocator.h"
#include "server/sequence/sequence_table.h"
#include "server/sequence/state_table.h"
#include "server/sequence/tenant_owners.h"

namespace oasiskv::server {

// INVALID_ARGUMENT naming the field when a name is longer than anything the core keeps, or name or
// model is shorter than `least`. Later refusals print the names, so every call that takes them
// checks this first.
absl::Status CheckNames(const std::string& name, const Identity& identity, size_t least);
inline constexpr size_t kMaxNameBytes = 256;

// Fills it with zeros.
void Clear(std::span<const std::span<std::byte>> memory);

// Thread contract: safe for concurrent use. Pins of Authorize must be gone before it is destroyed.
//
// Implements the state table of server/sequence/README.md and the rules of server/lease/README.md.
// One mutex guards all tables. Copies of blobs, and the pause between changing grant words and
// letting go of frames, happen outside it. Calls on very many grants take the mutex in portions.
//
// Time passes only in Tick(now), in this order:
//   1. credit the time since the last call, at most kMaxTick (a daemon that was stopped expires
//      nobody for it);
//   2. expire grants;
//   3. release unattended sequences.
class KvCore final : public fabric::GrantAuthority {
 public:
  static constexpr Duration kMaxTick = std::chrono::milliseconds(500);

  // Maps and touches the pool (this takes about 0.3 s per GiB). Errors: INVALID_ARGUMENT naming
  // the option, CAPACITY.
  static absl::StatusOr<std::unique_ptr<KvCore>> Create(const CoreOptions& options,
                                                        const Clock& clock);

  absl::StatusOr<OpenResult> Open(const OpenSpec& spec);
  // Gives blocks [first_block, first_block + blocks); those that the sequence does not have yet are
  // new. `first_block`: how many blocks the caller knows of.
  absl::StatusOr<ExtendResult> Extend(GrantKey writer, uint32_t first_block, uint32_t blocks);
  absl::Status Commit(GrantKey writer, std::span<const LayerBlocks> ranges,
                      std::span<const uint32_t> checksums);
  absl::Status Seal(GrantKey writer, uint64_t token_count, FirstTopK first_topk, std::string blob);
  absl::StatusOr<AttachResult> Attach(const AttachSpec& spec);
  // OK when `name` is sealed; else NOT_FOUND, NOT_SEALED, IDENTITY_MISMATCH or DRAINING.
  absl::Status CheckSealed(const std::string& name, const Identity& identity) const;
  absl::StatusOr<RenewResult> Renew(std::span<const GrantKey> grants, Duration lease);
  absl::StatusOr<ReleaseResult> Release(std::span<const GrantKey> grants,
                                        std::span<const SequenceRef> sequences,
                                        const Identity& identity);
  // The number of grants revoked; 0 when the sequence is gone already.
  absl::StatusOr<uint32_t> Abort(const SequenceRef& sequence, const Identity& identity);
  // Ends what the Open with that token made. Its caller has never had the grant, so nobody wrote.
  uint32_t AbandonOpen(CallToken token);
  // The caller of Open or Attach was gone before it got the answer: what it was to get ends, if no
  // repeat of the call was told of it too.
  void Undeliver(GrantKey grant);

  // Draining opens nothing new. What is there can be attached, read, sealed and released.
  void SetDraining(bool draining);
  bool draining() const;
  void Tick(MonotonicTime now);
  // Connections of writers that hold frames in quarantine and have had `patience` (served time) to
  // fence the grant that was revoked. Where the daemon can end a connection, this is when.
  std::vector<ConnectionId> UnfencedWriters(Duration patience) const;
  // Clears free memory that another tenant may get next, for up to `budget`, so that Open and
  // Extend find it clear. For a thread of its own.
  void Scrub(Duration budget);

  CapacityInfo Capacity() const;
  CoreCounters Counters() const;
  // Up to `limit` items with ids above `after`, ascending.
  std::vector<SequenceInfo> Sequences(SequenceId after, uint32_t limit,
                                      const std::string& tenant) const;
  std::vector<GrantInfo> Grants(GrantId after, uint32_t limit) const;

  fabric::ExportedMemory Export() const;
  uint64_t incarnation() const { return incarnation_; }
  const CoreOptions& options() const { return options_; }

  absl::StatusOr<fabric::PinnedRanges> Authorize(
      GrantId grant, Epoch epoch, fabric::Access access,
      std::span<const fabric::RemoteRange> ranges) override;
  uint64_t GrantWord(GrantId grant) const override;
  void Written(GrantId grant, Epoch epoch, std::span<const fabric::RemoteRange> ranges) override;
  void WriterFenced(ConnectionId connection, GrantId grant) override;
  void ConnectionOpened(ConnectionId connection) override;
  void ConnectionClosed(ConnectionId connection) override;

 private:
  KvCore(const CoreOptions& options, const Clock& clock, std::unique_ptr<Pool> pool);
  absl::Status Init();

  // What the first step of an ending leaves for the second.
  struct Ending {
    struct Frames {
      std::shared_ptr<const SequenceBody> body;
      uint32_t from = 0, to = 0;
    };
    std::vector<Grant*> grants;    // revoked
    std::vector<Frames> frames;    // a sequence's own references
    std::vector<std::string> log;  // written when the mutex is free: stderr may be slow
  };

  // Frames that a call has taken and no table knows yet.
  struct NewFrames {
    std::vector<Frame> frames;
    std::vector<std::span<std::byte>> dirty;  // to be cleared before anybody gets them
  };
  // Waits where the scrubber holds what is missing.
  absl::Status Allocate(const SequenceBody& body, uint32_t blocks, NewFrames& fresh)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Status CheckOpen(const OpenSpec& spec) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The live grant that an earlier call with that token made, for that sequence and access.
  Grant* FindRepeated(CallToken token, fabric::Access access, const std::string& name,
                      const Identity& identity) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The answer to a repeated call.
  void Answer(Grant& grant, Duration lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<OpenResult> AnswerRepeatedOpen(const OpenSpec& spec, Duration lease)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The grant of an Open that is repeated from another connection; null when there is none.
  Grant* FindAbandoned(const OpenSpec& spec) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint32_t Abandon(Grant& grant, Ending& ending) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The live sequence that is meant; null when there is none.
  Sequence* FindMeant(const SequenceRef& ref, const Identity& identity) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // These two take `fresh` over, or give its frames back.
  absl::StatusOr<OpenResult> OpenLocked(const OpenSpec& spec, Duration lease,
                                        const std::shared_ptr<SequenceBody>& body, NewFrames& fresh)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<ExtendResult> ExtendLocked(GrantKey writer, uint32_t first_block, uint32_t blocks,
                                            NewFrames& fresh) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `missing`: how many of the blocks the sequence does not have yet; 0 in a repeat.
  absl::StatusOr<Grant*> CheckExtend(GrantKey writer, uint32_t first_block, uint32_t blocks,
                                     uint32_t& missing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CommitLocked(GrantKey writer, std::span<const LayerBlocks> ranges,
                            std::span<const uint32_t> checksums)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status SealLocked(GrantKey writer, uint64_t token_count, FirstTopK& first_topk,
                          std::string& blob, uint64_t hash, Ending& ending)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckRelease(std::span<const GrantKey> grants,
                            std::span<const SequenceRef> sequences, const Identity& identity)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<fabric::PinnedRanges> AuthorizeLocked(GrantId id, Epoch epoch,
                                                       fabric::Access access,
                                                       std::span<const fabric::RemoteRange> ranges)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // The live writer's grant, its sequence advanced by `op`.
  absl::StatusOr<Grant*> FindWriter(GrantKey key, SequenceOp op)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The default for 0; INVALID_ARGUMENT for a lease out of bounds.
  absl::StatusOr<Duration> LeaseOf(Duration asked) const;
  wire::Grant Describe(const Grant& grant, Duration lease) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<FrameAddress> Addresses(std::span<const Frame> frames) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t ChecksumBytes(const Sequence& sequence, uint32_t blocks) const;
  // CAPACITY when the answer to an attach would exceed max_attach_bytes: nobody could read it.
  absl::Status CheckAttachable(const Geometry& geometry, bool checksums, uint32_t blocks,
                               uint64_t seal_bytes) const;
  // Counts a refusal by its code and passes it on.
  absl::Status Refused(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // First step of an ending: words change, tables forget.
  void EndGrant(Grant& grant, GrantEnd end, Ending& ending) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint32_t AbortSequence(Sequence& sequence, Ending& ending) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LoseGrant(Grant& grant, GrantEnd end, Ending& ending) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReleaseSequence(Sequence& sequence, Ending& ending) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReleaseUnattended(Sequence& sequence, Ending& ending) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TickGrants() ABSL_LOCKS_EXCLUDED(mutex_);
  void TickSequences() ABSL_LOCKS_EXCLUDED(mutex_);
  // Second step: frames go.
  void Finish(const Ending& ending) ABSL_LOCKS_EXCLUDED(mutex_);

  // Constant after construction.
  const CoreOptions options_;
  const Clock& clock_;  // outlives the core
  const uint64_t incarnation_;
  LogGate lost_writers_, unattended_;  // self-synchronized
  const std::unique_ptr<Pool> pool_;   // its free map is the allocator's, under mutex_

  mutable Mutex mutex_;
  SlabAllocator allocator_ ABSL_GUARDED_BY(mutex_);
  SequenceTable sequences_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<GrantTable> grants_ ABSL_GUARDED_BY(mutex_);
  ServedClock served_ ABSL_GUARDED_BY(mutex_);
  CoreCounters counters_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  TenantOwners owners_ ABSL_GUARDED_BY(mutex_);
  bool scrubbing_ ABSL_GUARDED_BY(mutex_) = false;  // the scrubber holds memory
  int want_memory_ ABSL_GUARDED_BY(mutex_) = 0;     // calls that wait for it
  CondVar scrubbed_;
};

}  // namespace oasiskv::server
