// The decode side of one attached sequence.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "oasiskv/buffer.h"
#include "oasiskv/export.h"
#include "oasiskv/geometry.h"

namespace oasiskv {

struct ReaderSpec {
  std::string name;
  Identity identity;
  Geometry geometry;                          // what the shard must have; compared field by field
  uint32_t first_head = 0, head_count = 0;    // heads of the shard to attach; count 0: all
  std::chrono::nanoseconds lease{0};          // 0: the client's
  std::chrono::nanoseconds wait_for_seal{0};  // 0: attach at once, also while it is open
};

// One whole entry. Heads are counted within the shard.
struct EntryRead {
  BlockIndex block;
  LayerIndex layer;
  HeadIndex head;
  std::byte* into = nullptr;  // geometry.entry_bytes()
};

// A grant's frames as memory of this process that may be read in place. Bytes that were read are
// valid only if the grant word still holds the epoch when it is looked at *after* the read.
struct LocalFrames {
  std::vector<const std::byte*> frames;  // by block, geometry.frame_bytes() each
  const uint64_t* grant_word = nullptr;
  uint64_t epoch = 0;
  // The whole mappings that hold the frames: never writable, mapped as long as `keep` is held.
  std::vector<std::span<const std::byte>> mappings;
  std::shared_ptr<const void> keep;
};

// `layers` x all attached heads of one block, contiguous as in the frame: [layer][head] entries.
struct LayerRead {
  BlockIndex block;
  LayerIndex first_layer;
  uint32_t layers = 1;
  std::byte* into = nullptr;  // layers * head_count * geometry.entry_bytes()
};

// Thread contract: used by one thread at a time.
//
// A batch in flight. Once Wait or Cancel has returned, or the destructor has run, nothing writes to
// its buffers any more.
class OASISKV_EXPORT PendingFetch {
 public:
  virtual ~PendingFetch() = default;
  virtual bool Done() = 0;
  // OK: all bytes are there and the grant was still valid after they had arrived. On an error the
  // buffers hold nothing of use.
  virtual absl::Status Wait() = 0;
  virtual void Cancel() = 0;
};

// Thread contract: safe for concurrent use.
//
// A reader's grant: while it lives, the frames stay. Every fetch ends by its deadline, and before
// the lease ends by this process's own clock. Errors of every fetch: NOT_COMMITTED, OUT_OF_RANGE,
// FOREIGN (a head outside the attached range), STALE, LEASE_EXPIRED, DEADLINE_EXCEEDED, PEER_LOST,
// CHECKSUM_MISMATCH; messages name the index in the list.
class OASISKV_EXPORT Reader {
 public:
  Reader(Reader&&) noexcept;
  Reader& operator=(Reader&&) noexcept;
  ~Reader();  // releases the grant (in the background)

  using TimePoint = std::chrono::steady_clock::time_point;
  // Now plus the client's read_timeout.
  TimePoint DefaultDeadline() const;

  std::unique_ptr<PendingFetch> FetchEntries(std::span<const EntryRead> entries,
                                             TimePoint deadline);
  std::unique_ptr<PendingFetch> FetchLayers(std::span<const LayerRead> layers, TimePoint deadline);
  // Summaries of blocks [first, first + count), attached heads only, into
  // [block][layer][head][min|max][head_dim].
  absl::Status FetchSummaries(BlockIndex first, uint32_t count, std::byte* into,
                              TimePoint deadline);
  // A top-K list as predictors make it: blocks[i] of one layer and head goes to
  // `into + i * stride` (bytes). For -1, which is padding, nothing is written; a block named twice
  // is fetched once and copied; any other number out of range is OUT_OF_RANGE with its index.
  absl::Status FetchTopK(LayerIndex layer, HeadIndex head, std::span<const int32_t> blocks,
                         std::byte* into, int64_t stride, TimePoint deadline);
  // Client::RegisterBuffer of this reader's client.
  absl::StatusOr<RegisteredBuffer> RegisterBuffer(std::span<std::byte> memory);
  // Where the frames are in this process; UNSUPPORTED unless local().
  absl::StatusOr<LocalFrames> Frames() const;
  // Gives the grant back now, after cancelling the fetches in flight. Later fetches are STALE.
  absl::Status Release();

  const Geometry& geometry() const;  // of the shard
  uint32_t first_head() const;
  uint32_t head_count() const;
  bool sealed() const;
  uint64_t token_count() const;  // 0 while open
  uint32_t blocks() const;
  bool local() const;  // read over shm: the frames are in this host's memory
  bool IsCommitted(LayerIndex layer, BlockIndex block) const;
  uint32_t first_topk_k() const;  // 0: the producer gave none
  // The first decode step's top-K, [layer][head of the shard][k], best first, -1 for none.
  std::span<const int32_t> first_topk() const;
  const std::string& blob() const;
  // OK, or why the grant is not usable now: LEASE_EXPIRED while renewals fail (it may come back),
  // STALE, PEER_LOST.
  absl::Status Health() const;

 private:
  friend class Client;
  class OASISKV_HIDDEN Impl;
  explicit Reader(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace oasiskv
