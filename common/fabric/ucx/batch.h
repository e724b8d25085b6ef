// One batch in flight as its owner, the progress thread and the connection's books see it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "common/fabric/coalesce.h"
#include "common/fabric/fabric.h"
#include "common/fabric/write_gate.h"
#include "common/mutex.h"

namespace oasiskv::fabric::ucx {

// Thread contract: safe for concurrent use.
//
// What one connection counts, and which of its writes are running. Batches hold it, so it may
// outlive the connection.
class Ledger {
 public:
  // Which writes may start; a write is inside while it runs.
  WriteGate& gate() { return gate_; }

  void Count(uint64_t ConnectionStats::*counter, uint64_t by = 1);
  // Counts a batch by how it ended.
  void CountEnd(const absl::Status& outcome);
  ConnectionStats Stats() const;

 private:
  WriteGate gate_;
  mutable Mutex mutex_;
  ConnectionStats stats_ ABSL_GUARDED_BY(mutex_);
};

// A contiguous stretch of a batch. `local` is read from by writes, written to by reads.
struct Stretch {
  uint32_t block = 0;
  uint32_t offset = 0;
  uint64_t bytes = 0;
  std::byte* local = nullptr;
};

// Where a walk over a batch's bytes stands.
struct BatchCursor {
  size_t stretch = 0;
  uint64_t offset = 0;  // within it
};

// Thread contract: safe for concurrent use, except the members below "progress thread".
//
// The outcome is set once, by whoever comes first: the progress thread (data complete, refused,
// peer lost, deadline), or the owner (cancel, deadline). Buffers are touched only under the batch's
// lock and only while there is no outcome; so when End has returned, nothing touches them any more
// (rules 3 and 4 of server/lease/README.md), and data that comes late is thrown away.
class Batch {
 public:
  Batch(Access access, std::shared_ptr<const GrantView> grant, MonotonicTime deadline,
        std::shared_ptr<Ledger> ledger);

  const Access access;
  const std::shared_ptr<const GrantView> grant;
  const MonotonicTime deadline;

  // --- set up before the batch is shared ---
  template <typename Piece>
  absl::Status Prepare(std::span<const Piece> pieces);
  // For a write: asks the gate. False when it lets no more in. The batch is inside until it ends.
  bool EnterGate();

  // --- any thread ---
  bool ended() const { return ended_.load(std::memory_order_acquire); }
  // The outcome is `status` unless there is one.
  void End(const absl::Status& status);
  absl::Status WaitEnded();
  TransferTimes Times() const;

  // --- progress thread ---
  const std::vector<Stretch>& stretches() const { return stretches_; }
  // Copies arrived bytes to where they belong, `position` bytes behind `from`. False: the batch has
  // ended, nothing was touched.
  bool CopyIn(BatchCursor from, uint64_t position, std::span<const std::byte> data);
  // Appends `bytes` bytes behind `from` to `out`. False: as above.
  bool CopyOut(BatchCursor from, uint64_t bytes, std::vector<std::byte>& out);
  void MarkPosted();

  BatchCursor next;          // first byte not asked for (or not sent)
  size_t open_requests = 0;  // asked and not answered
  bool all_asked() const { return next.stretch == stretches_.size(); }

 private:
  const std::shared_ptr<Ledger> ledger_;
  const MonotonicTime started_;
  std::vector<Stretch> stretches_;

  std::atomic<bool> ended_{false};
  mutable Mutex mutex_;
  CondVar ended_changed_;
  std::optional<absl::Status> outcome_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<WriteGate::Pass> pass_ ABSL_GUARDED_BY(mutex_);
  TransferTimes times_ ABSL_GUARDED_BY(mutex_);
  MonotonicTime prepared_at_ ABSL_GUARDED_BY(mutex_);
  MonotonicTime posted_at_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace oasiskv::fabric::ucx
