// KvCore's implementation: one mutex over the tables of pool, sequence and lease.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/log.h"
#include "common/mutex.h"
#include "server/core/kv_core.h"
#include "server/lease/grant_table.h"
#include "server/lease/served_clock.h"
#include "server/pool/pool.h"
#include "server/pool/slab_allocator.h"
#include "server/sequence/sequence_table.h"
#include "server/sequence/state_table.h"

namespace oasiskv::server {

// INVALID_ARGUMENT naming the field when a name is longer than anything the core keeps, or name or
// model is shorter than `least`. What is refused elsewhere names them in its text, so every call
// that takes them asks this first.
absl::Status CheckNames(const std::string& name, const Identity& identity, size_t least);
inline constexpr size_t kMaxNameBytes = 256;

// Thread contract: safe for concurrent use. Pins of Authorize must be gone before it is destroyed.
//
// Every call holds the mutex for what touches tables only; copies of blobs, waiting, and the pause
// between changing grant words and letting go of frames happen outside it. Calls on very many
// grants take the mutex in portions.
class CoreImpl final : public KvCore {
 public:
  CoreImpl(const CoreOptions& options, const Clock& clock, std::unique_ptr<Pool> pool);
  ~CoreImpl() override;
  absl::Status Init();

  absl::StatusOr<OpenResult> Open(const OpenSpec& spec) override;
  absl::StatusOr<ExtendResult> Extend(GrantKey writer, uint32_t blocks) override;
  absl::Status Commit(GrantKey writer, std::span<const LayerBlocks> ranges,
                      std::span<const uint32_t> checksums) override;
  absl::Status Seal(GrantKey writer, uint64_t token_count, FirstTopK first_topk,
                    std::string blob) override;
  absl::StatusOr<AttachResult> Attach(const AttachSpec& spec) override;
  absl::Status WaitSealed(const std::string& name, const Identity& identity,
                          MonotonicTime deadline) override;
  void StopWaiting() override;
  absl::StatusOr<RenewResult> Renew(std::span<const GrantKey> grants, Duration lease) override;
  absl::StatusOr<ReleaseResult> Release(std::span<const GrantKey> grants,
                                        std::span<const std::string> sequences,
                                        const Identity& identity) override;
  absl::StatusOr<uint32_t> Abort(const std::string& name, const Identity& identity) override;

  void SetDraining(bool draining) override;
  bool draining() const override;
  void Tick(MonotonicTime now) override;
  std::vector<ConnectionId> UnfencedWriters(Duration patience) const override;

  CapacityInfo Capacity() const override;
  CoreCounters Counters() const override;
  std::vector<SequenceInfo> Sequences(SequenceId after, uint32_t limit,
                                      const std::string& tenant) const override;
  std::vector<GrantInfo> Grants(GrantId after, uint32_t limit) const override;
  fabric::ExportedMemory Export() const override;
  uint64_t incarnation() const override { return incarnation_; }
  const CoreOptions& options() const override { return options_; }

  absl::StatusOr<fabric::PinnedRanges> Authorize(
      GrantId grant, Epoch epoch, fabric::Access access,
      std::span<const fabric::RemoteRange> ranges) override;
  uint64_t GrantWord(GrantId grant) const override;
  void WriterFenced(ConnectionId connection, GrantId grant) override;
  void ConnectionOpened(ConnectionId connection) override;
  void ConnectionClosed(ConnectionId connection) override;

 private:
  // What the first step of an ending leaves for the second.
  struct Ending {
    struct Frames {
      std::shared_ptr<const SequenceBody> body;
      uint32_t from = 0, to = 0;
    };
    std::vector<Grant*> grants;  // revoked
    std::vector<Frames> frames;  // a sequence's own references
  };
  struct Waiter {
    CondVar changed;
    std::optional<absl::Status> outcome;
  };
  using NameKey = std::pair<std::string, std::string>;  // tenant, name

  absl::StatusOr<OpenResult> OpenLocked(const OpenSpec& spec, Duration lease)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<ExtendResult> ExtendLocked(GrantKey writer, uint32_t blocks)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CommitLocked(GrantKey writer, std::span<const LayerBlocks> ranges,
                            std::span<const uint32_t> checksums)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status SealLocked(GrantKey writer, uint64_t token_count, FirstTopK& first_topk,
                          std::string& blob, Ending& ending) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckRelease(std::span<const GrantKey> grants,
                            std::span<const std::string> sequences, const Identity& identity)
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

  void Notify(const NameKey& name, const absl::Status& outcome)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NotifyAll(const absl::Status& outcome) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

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
  bool stopped_waiting_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_map<NameKey, std::vector<Waiter*>> waiters_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace oasiskv::server
