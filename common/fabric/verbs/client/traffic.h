// What a client has under way on its queue pairs: the state that poster, completer and sweeper share.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "common/fabric/fabric.h"
#include "common/fabric/verbs/buffers.h"
#include "common/fabric/verbs/client/batch.h"
#include "common/fabric/verbs/handles.h"

namespace oasiskv::fabric::verbs {

// Work requests that are linked and handed over together; only the last of them is signalled.
constexpr uint32_t kChunkRequests = 16;
// A work request's id, from its low bits: which request of the chunk (8 bits), the chunk's place
// (24 bits), which use of that place (32 bits).
constexpr uint32_t kPlaceShift = 8;
constexpr uint32_t kUseShift = 32;
// A broken queue pair flushes at once. One that has not after this time is destroyed, after which
// the device touches nothing for it either.
constexpr Duration kFlushPatience = std::chrono::seconds(1);

enum class ChunkKind : uint8_t { kData, kWord, kKeepalive };

// In flight on one queue pair.
struct Chunk {
  // Names the chunk to the device. Each use of a place has another id, so that its completions are
  // not taken for those of an earlier use.
  uint64_t id = 0;
  ChunkKind kind = ChunkKind::kData;
  uint32_t pair = 0;
  uint32_t count = 0;
  bool failed = false;
  bool direct = false;  // touches the caller's memory
  uint64_t bytes = 0;
  uint64_t bounced = 0;          // part of `bytes`: goes through `area`
  std::optional<uint32_t> area;  // of the bounce pool
  std::shared_ptr<Batch> batch;
  std::array<Stretch, kChunkRequests> stretches;   // one per request
  std::array<std::byte*, kChunkRequests> bounces;  // of requests that go through `area`
  uint32_t bounced_requests = 0;                   // which requests those are, one bit each
  // Keeps the caller's registered memory that it touches.
  std::vector<std::shared_ptr<Region>> regions;
};

struct Pair {
  QueuePair handle;
  uint32_t psn = 0;
  uint32_t outstanding = 0;  // work requests
  bool broken = false;
  MonotonicTime broken_at{};
};

// Thread contract: guarded by the engine's mutex.
struct Traffic {
  // One place for a chunk per work request that the queue pairs can hold.
  Traffic(std::vector<Pair> queue_pairs, uint32_t places, BouncePool bounce_pool);

  // Null when all places are taken.
  Chunk* Take(ChunkKind kind, uint32_t pair);
  void Give(Chunk& chunk);
  // The queue pair with the fewest work requests, if that is below `limit`.
  std::optional<uint32_t> FreestPair(uint32_t limit) const;

  BouncePool bounce;
  std::vector<Chunk> chunks;  // by place
  std::vector<uint32_t> free_chunks;
  std::vector<Pair> pairs;
  uint32_t outstanding = 0;  // work requests on all queue pairs
  uint64_t bytes = 0;        // of data
  // All their data has arrived; the grant word is to be read next.
  std::vector<std::shared_ptr<Batch>> to_check;
  absl::Status lost;  // why nothing goes out any more
  MonotonicTime last_heard{};
  ConnectionStats stats;
};

}  // namespace oasiskv::fabric::verbs
