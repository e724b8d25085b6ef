// One batch of a verbs connection, as the engine sees it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "common/fabric/fabric.h"
#include "common/fabric/verbs/buffers.h"
#include "common/mutex.h"

namespace oasiskv::fabric::verbs {

// A stretch that is contiguous on both sides. `local` is read from by writes, written to by reads.
struct Stretch {
  uint64_t remote = 0;
  uint64_t bytes = 0;
  std::byte* local = nullptr;
  uint32_t key = 0;
};

// Stretches wait for the device in parcels of at most this size, and at most this many parcels per
// batch: the limit of what a batch of any size costs in memory.
constexpr size_t kParcelStretches = 1024;
constexpr size_t kMaxParcels = 4;

// Batch::live_at of one that is on no list.
constexpr size_t kNotLive = std::numeric_limits<size_t>::max();

// Thread contract: every member belongs to the engine's lock, except the constant ones and `ended`.
//
//   filling -> posting -> draining -> checking -> ended
//
// A batch that ends early (cancel, deadline,
// connection lost) keeps why in `ending` and has its outcome once the device can no longer touch
// the caller's memory for it.
struct Batch {
  Batch(Access batch_access, Priority batch_priority, std::shared_ptr<const GrantView> batch_grant,
        MonotonicTime batch_deadline, MonotonicTime now)
      : access(batch_access),
        priority(batch_priority),
        grant(std::move(batch_grant)),
        deadline(batch_deadline),
        started(now),
        prepared(now),
        posted(now) {}

  const Access access;
  const Priority priority;
  const std::shared_ptr<const GrantView> grant;
  const MonotonicTime deadline;
  const MonotonicTime started;

  std::vector<std::vector<Stretch>> parcels;
  size_t next = 0;            // in the first parcel
  uint64_t next_offset = 0;   // in that stretch: bytes posted already
  bool filled = false;        // the caller has handed over all its parcels
  bool queued = false;        // in one of the poster's queues
  size_t live_at = kNotLive;  // place in the completer's list of those without an outcome
  bool checking = false;      // all data is there, the grant word is read next or on its way
  bool counted_as_write = false;
  std::shared_ptr<Region> region;  // where the last buffer lay: the next lies there too, mostly

  uint32_t chunks = 0;         // in flight
  uint32_t direct_chunks = 0;  // of these: touch the caller's memory
  uint32_t word_reads = 0;     // in flight
  uint32_t pairs_used = 0;     // one bit each queue pair

  std::optional<absl::Status> ending;
  MonotonicTime patience_ends = MonotonicTime::max();

  std::optional<absl::Status> outcome;
  std::atomic<bool> ended{false};
  MonotonicTime prepared, posted;
  TransferTimes times;
  CondVar changed;  // outcome, or room for a parcel

  bool AllPosted() const { return filled && parcels.empty(); }
  bool Over() const { return ending.has_value() || outcome.has_value(); }
};

}  // namespace oasiskv::fabric::verbs
