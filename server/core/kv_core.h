// The daemon without its network: sequences, grants and memory behind plain calls. server/service
// translates gRPC to it.
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
#include "common/wire/convert.h"
#include "oasiskv/geometry.h"
#include "oasiskv/ids.h"
#include "server/pool/huge_pages.h"
#include "server/sequence/types.h"

namespace oasiskv::server {

// One struct for everything the core can be told; the flags of server/options fill it.
struct CoreOptions {
  uint64_t pool_bytes = uint64_t{1} << 30;  // multiple of slab_bytes
  uint64_t arena_bytes =
      0;  // 0: one arena of pool_bytes; else a multiple of slab_bytes that divides pool_bytes
  uint64_t slab_bytes =
      uint64_t{64}
      << 20;  // multiple of the page size; frames larger than it get slabs of their own size
  HugePages huge_pages = HugePages::kOff;
  int numa_node = -1;           // -1: wherever the kernel likes
  int touch_threads = 0;        // 0: one per CPU
  uint32_t max_grants = 65536;  // entries of the grant-word table
  uint32_t max_sequences = 65536;
  uint32_t max_blocks_per_sequence = 262144;
  uint64_t max_blob_bytes = uint64_t{1} << 20;  // per sequence
  uint64_t max_blobs_bytes = uint64_t{256}
                             << 20;  // over all sequences: first_topk + blob + checksums
  // Frame addresses, checksums, first top-K, blob and commits of one attach answer, which is one
  // gRPC message: 4 MiB less room for framing.
  uint64_t max_attach_bytes = (uint64_t{4} << 20) - (uint64_t{64} << 10);
  Duration default_lease = std::chrono::seconds(10);
  Duration max_lease = std::chrono::minutes(10);
  // A sealed sequence without a grant for so long (served time) is released; 0: never.
  Duration unattended_ttl = std::chrono::minutes(10);
};

struct OpenSpec {
  std::string name;
  Identity identity;
  Geometry geometry;
  uint32_t blocks = 0;
  Duration lease{0};        // 0: default
  ConnectionId connection;  // zero: writes come through a fabric that checks each one
  bool checksums = false;
  std::string holder;  // for listings
};
struct OpenResult {
  SequenceId sequence;
  wire::Grant grant;
};

struct ExtendResult {
  uint32_t first_block = 0;
  std::vector<FrameAddress> frames;
};

struct AttachSpec {
  std::string name;
  Identity identity;
  Geometry geometry;
  uint32_t first_head = 0, head_count = 0;  // 0: all
  Duration lease{0};
  bool require_sealed = false;
  std::string holder;
};
struct AttachResult {
  SequenceId sequence;
  wire::Grant grant;
  SequenceState state = SequenceState::kOpen;
  uint64_t token_count = 0;
  std::vector<LayerBlocks> committed;  // empty for a sealed sequence
  FirstTopK first_topk;
  std::string blob;
  std::vector<uint32_t> checksums;  // [block][layer][head]
};

struct GrantKey {
  GrantId id;
  Epoch epoch;
};
struct LostGrant {
  GrantId id;
  int reason = 0;  // ErrorCode: STALE, LEASE_EXPIRED, NOT_FOUND
};
struct RenewResult {
  Duration lease{0};
  std::vector<LostGrant> lost;
};

struct ReleaseResult {
  uint32_t grants = 0, sequences = 0;
};

struct FrameClassInfo {
  uint64_t frame_stride = 0, slabs = 0, frames = 0, frames_used = 0;
};
struct CapacityInfo {  // meanings: oasiskv.v1.GetCapacityResponse
  uint64_t pool_bytes = 0, free_bytes = 0, used_bytes = 0, quarantined_bytes = 0,
           overhead_bytes = 0;
  uint64_t metadata_bytes = 0, slab_bytes = 0, slabs_total = 0, slabs_free = 0;
  uint32_t arenas = 0;
  bool huge_pages = false, huge_pages_fell_back = false;
  uint64_t sequences_open = 0, sequences_sealed = 0, sequences_released = 0;
  uint64_t grants_reader = 0, grants_writer = 0;
  std::vector<FrameClassInfo> classes;
};
struct SequenceInfo {
  SequenceId id;
  std::string name;
  Identity identity;
  Geometry geometry;
  SequenceState state = SequenceState::kOpen;
  uint32_t blocks = 0, readers = 0;
  uint64_t bytes = 0, token_count = 0, committed_layer_blocks = 0;
  Duration age{0};
};
struct GrantInfo {
  GrantId id;
  Epoch epoch;
  bool writer = false, quarantined = false;
  SequenceId sequence;
  std::string sequence_name, holder;
  Duration lease_left{0};
  uint32_t frames = 0, first_head = 0, head_count = 0;
};

// Counters since start; each is one metric.
struct CoreCounters {
  uint64_t opens = 0, attaches = 0, commits = 0, seals = 0, renewals = 0;
  uint64_t grants_released = 0, grants_expired = 0, grants_revoked = 0;  // revoked: abort and evict
  uint64_t sequences_aborted = 0, sequences_released = 0,
           sequences_expired = 0;     // expired: the writer's lease ended before seal
  uint64_t sequences_unattended = 0;  // released because nobody had a grant for unattended_ttl
  uint64_t stale_requests = 0,
           expired_requests = 0;  // calls and data requests refused for that reason
  uint64_t capacity_refusals = 0;
};

// Thread contract: safe for concurrent use.
//
// Implements the sequence state table of server/sequence/README.md and the rule of design.md
// section 3. Time passes only while someone calls Tick: Tick(now) credits at most kMaxTick since
// the last call (a daemon that was stopped expires nobody for it), then expires grants, then
// releases unattended sequences.
class KvCore : public fabric::GrantAuthority {
 public:
  static constexpr Duration kMaxTick = std::chrono::milliseconds(500);

  // Maps and touches the pool (this takes time: about 0.3 s a GiB). Errors: INVALID_ARGUMENT naming
  // the option, CAPACITY.
  static absl::StatusOr<std::unique_ptr<KvCore>> Create(const CoreOptions& options,
                                                        const Clock& clock);
  ~KvCore() override = default;

  virtual absl::StatusOr<OpenResult> Open(const OpenSpec& spec) = 0;
  virtual absl::StatusOr<ExtendResult> Extend(GrantKey writer, uint32_t blocks) = 0;
  virtual absl::Status Commit(GrantKey writer, std::span<const LayerBlocks> ranges,
                              std::span<const uint32_t> checksums) = 0;
  virtual absl::Status Seal(GrantKey writer, uint64_t token_count, FirstTopK first_topk,
                            std::string blob) = 0;
  virtual absl::StatusOr<AttachResult> Attach(const AttachSpec& spec) = 0;
  // Blocks until `name` exists and is sealed (OK), `deadline` passed (NOT_FOUND or NOT_SEALED), it
  // was aborted (WRONG_STATE), or StopWaiting (DRAINING).
  virtual absl::Status WaitSealed(const std::string& name, const Identity& identity,
                                  MonotonicTime deadline) = 0;
  virtual void StopWaiting() = 0;
  virtual absl::StatusOr<RenewResult> Renew(std::span<const GrantKey> grants, Duration lease) = 0;
  virtual absl::StatusOr<ReleaseResult> Release(std::span<const GrantKey> grants,
                                                std::span<const std::string> sequences,
                                                const Identity& identity) = 0;
  // The number of grants revoked; 0 when the sequence is gone already.
  virtual absl::StatusOr<uint32_t> Abort(const std::string& name, const Identity& identity) = 0;

  virtual void SetDraining(bool draining) = 0;
  virtual bool draining() const = 0;
  virtual void Tick(MonotonicTime now) = 0;
  // Connections of writers that hold frames in quarantine and have had `patience` (served time) to
  // fence the grant that was revoked. Where the daemon can end a connection, this is when.
  virtual std::vector<ConnectionId> UnfencedWriters(Duration patience) const = 0;

  virtual CapacityInfo Capacity() const = 0;
  virtual CoreCounters Counters() const = 0;
  // Up to `limit` items with ids above `after`, ascending.
  virtual std::vector<SequenceInfo> Sequences(SequenceId after, uint32_t limit,
                                              const std::string& tenant) const = 0;
  virtual std::vector<GrantInfo> Grants(GrantId after, uint32_t limit) const = 0;

  virtual fabric::ExportedMemory Export() const = 0;
  virtual uint64_t incarnation() const = 0;
  virtual const CoreOptions& options() const = 0;
};

}  // namespace oasiskv::server
