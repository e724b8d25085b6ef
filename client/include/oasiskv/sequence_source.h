// One request's KV, wherever it is: in remote shards and in host memory of the decode side.
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
#include "oasiskv/export.h"
#include "oasiskv/geometry.h"
#include "oasiskv/reader.h"

namespace oasiskv {

struct SourceStats {
  uint64_t remote_bytes = 0;  // entries and summaries that came from daemons
  uint64_t remote_entries = 0;
  uint64_t host_hits = 0;     // entries served from the HostCache
  uint64_t host_bytes = 0;    // bytes the HostCache holds now
  uint64_t written_back = 0;  // decoded entries stored
};

// Heads [first_head, first_head + head_count) of a source whose frames are in this host's memory.
// The entry of block b, layer l and head h begins at
//   memory.frames[b] + entry_offset + l * layer_stride + (h - first_head) * entry_bytes.
struct LocalPart {
  uint32_t first_head = 0, head_count = 0;
  uint64_t entry_offset = 0, layer_stride = 0;
  LocalFrames memory;  // of the prefill's blocks
};

// Thread contract: safe for concurrent use.
//
// Where a WorkingSet fetches a request's blocks from. The geometry is the decode rank's: heads are
// counted from 0 over all parts.
class OASISKV_EXPORT EntrySource {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  virtual ~EntrySource() = default;
  virtual const Geometry& geometry() const = 0;
  virtual uint64_t token_count() const = 0;  // of the prefill
  // Entries of prefill blocks and of blocks that were written back. A batch may span shards; each
  // shard's grant is checked.
  virtual std::unique_ptr<PendingFetch> Fetch(std::span<const EntryRead> entries,
                                              TimePoint deadline) = 0;
  // All prefill blocks' summaries, into [block][layer][head][min|max][head_dim].
  virtual absl::Status FetchSummaries(std::byte* into, TimePoint deadline) = 0;
  // The first decode step's top-K, [layer][head][k] in the rank's heads; empty when the producer
  // gave none.
  virtual std::vector<int32_t> FirstTopK(uint32_t* k) const = 0;
  // Stores a block that decoding completed: entries and summaries [head], in the frame's layout.
  // Layers may come in any order.
  virtual absl::Status WriteBack(BlockIndex block, LayerIndex layer,
                                 std::span<const std::byte> entries,
                                 std::span<const std::byte> summaries) = 0;
  // True: fetched entries stay in this host's memory, so that an admission pulls whole layer-blocks
  // of the union instead of each head's own entries.
  virtual bool KeepsFetched() const { return false; }
  // All heads, when all of them can be read in place; else empty.
  virtual absl::StatusOr<std::vector<LocalPart>> LocalEntries() const {
    return std::vector<LocalPart>();
  }
  virtual absl::Status Health() const = 0;
  virtual SourceStats Stats() const = 0;
};

// A part of a decode rank's heads: all attached heads of one reader, in the rank's order.
struct SourcePart {
  std::shared_ptr<Reader> reader;
};

enum class HostCachePolicy {
  // Keep fetched entries, unless every part is read over shm and so is in this host's memory anyway.
  kAuto,
  kAlways,
  kNever,
};

struct SequenceSourceOptions {
  HostCachePolicy host_cache = HostCachePolicy::kAuto;
  // Limit of one request; fetched entries beyond it are not kept.
  uint64_t host_cache_bytes = uint64_t{4} << 30;
};

// Joins parts into the heads of one decode rank, part 0's heads first. All parts must agree in
// everything but kv_heads and first_head, cover the heads without a gap, and have equal token
// counts. Entries that the HostCache keeps cross the network once; decoded blocks are kept there.
// Errors: INVALID_ARGUMENT, GEOMETRY_MISMATCH, which name the part.
OASISKV_EXPORT absl::StatusOr<std::shared_ptr<EntrySource>> MakeSequenceSource(
    std::vector<SourcePart> parts, const SequenceSourceOptions& options);

}  // namespace oasiskv
