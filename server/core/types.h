// What goes in and out of the core's calls: options, specs, results, listings, counters.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/wire/convert.h"
#include "oasiskv/geometry.h"
#include "oasiskv/ids.h"
#include "server/core/limits.h"
#include "server/pool/arena.h"
#include "server/pool/slab_allocator.h"
#include "server/sequence/types.h"

namespace oasiskv::server {

// Everything that the core can be told; the flags of server/options fill it.
struct CoreOptions {
  uint64_t pool_bytes = uint64_t{1} << 30;  // multiple of slab_bytes
  // 0: one arena of pool_bytes. Else a multiple of slab_bytes that divides pool_bytes.
  uint64_t arena_bytes = 0;
  // Multiple of the page size. A frame that is larger gets a slab of its own size.
  uint64_t slab_bytes = uint64_t{64} << 20;
  HugePages huge_pages = HugePages::kOff;
  int numa_node = -1;           // -1: the kernel chooses
  int touch_threads = 0;        // 0: one per CPU
  uint32_t max_grants = 65536;  // entries of the grant-word table
  uint32_t max_sequences = 65536;
  uint32_t max_blocks_per_sequence = kMostBlocks;
  uint64_t max_blob_bytes = uint64_t{1} << 20;  // per sequence
  // Over all sequences: first top-K, blob and checksums.
  uint64_t max_blobs_bytes = uint64_t{256} << 20;
  // Frame addresses, checksums, first top-K, blob and commits of one attach answer, which is one
  // gRPC message: 4 MiB less room for framing.
  uint64_t max_attach_bytes = (uint64_t{4} << 20) - (uint64_t{64} << 10);
  Duration default_lease = std::chrono::seconds(10);
  Duration max_lease = std::chrono::minutes(10);
  // A sealed sequence that has had no grant for this long (served time) is released; 0: never.
  Duration unattended_ttl = std::chrono::minutes(10);
  ClearFrames clear_frames = ClearFrames::kTenant;
};

struct OpenSpec {
  std::string name;
  Identity identity;
  Geometry geometry;
  uint32_t blocks = 0;
  Duration lease{0};  // 0: default
  // Zero: writes come through a fabric that checks each one.
  ConnectionId connection;
  bool checksums = false;
  std::string holder;  // for listings
  CallToken token{};
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
  uint32_t first_head = 0, head_count = 0;  // both 0: all
  Duration lease{0};                        // 0: default
  bool require_sealed = false;
  std::string holder;
  CallToken token{};
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
// Of two lives of one name, the one that is meant; zero: whichever has the name.
struct SequenceRef {
  std::string name;
  SequenceId id{};
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
// Meanings: oasiskv.v1.GetCapacityResponse.
struct CapacityInfo {
  uint64_t pool_bytes = 0, free_bytes = 0, used_bytes = 0;
  uint64_t quarantined_bytes = 0, overhead_bytes = 0;
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
  GrantId id;  // its epoch, which makes it usable, is its holder's secret
  bool writer = false, quarantined = false;
  SequenceId sequence;
  std::string sequence_name, holder;
  Duration lease_left{0};
  uint32_t frames = 0, first_head = 0, head_count = 0;
};

// Counters since start; each is one metric.
struct CoreCounters {
  uint64_t opens = 0, attaches = 0, commits = 0, seals = 0, renewals = 0;
  uint64_t grants_released = 0, grants_expired = 0;
  uint64_t grants_revoked = 0;  // by abort and evict
  uint64_t sequences_aborted = 0, sequences_released = 0;
  uint64_t sequences_expired = 0;     // the writer's lease ended before seal
  uint64_t sequences_unattended = 0;  // released because nobody had a grant for unattended_ttl
  // Calls and data requests that were refused for that reason.
  uint64_t stale_requests = 0, expired_requests = 0;
  uint64_t capacity_refusals = 0;
  uint64_t cleared_bytes = 0;  // before memory passed to its next user
  // Opens and Extends that cleared memory themselves or waited for the scrubber.
  uint64_t clear_waits = 0;
};

}  // namespace oasiskv::server
