// The client's half of the verbs fabric: which batch goes to which queue pair, and what becomes of
// it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/fabric/verbs/batch.h"
#include "common/fabric/verbs/buffers.h"
#include "common/fabric/verbs/handles.h"
#include "common/fabric/verbs/port.h"
#include "common/fabric/verbs/verbs.h"
#include "common/fabric/write_gate.h"
#include "common/mapped_memory.h"
#include "common/mutex.h"

namespace oasiskv::fabric::verbs {

// Work requests that are linked and handed over together; only the last of them is signalled.
constexpr uint32_t kChunkRequests = 16;
// A queue pair's reads, posted and not completed, in multiples of what its device has on the wire
// at a time: enough that the next are there when one completes, few enough that what comes first by
// priority comes soon.
constexpr uint32_t kWindowFactor = 2;
// A work request's id: which use of its chunk's place, the place, which request of the chunk.
constexpr uint32_t kPlaceShift = 8;
constexpr uint32_t kUseShift = 32;
// What one work request moves at most, so that a large stretch holds up nobody for long.
constexpr uint64_t kMaxRequestBytes = 256 << 10;

// Thread contract: safe for concurrent use. One lock guards everything; whoever has work (the
// thread that starts a batch, the engine's own after completions) posts it.
//
// The engine's thread looks for completions while there are any to come, and sleeps on the device's
// event when none came for a while. Batches of equal priority take turns, a chunk each; lower
// priorities may fill only a part of the window, so that a fetch that a step waits for finds room
// at once.
class Engine {
 public:
  // Queue pairs are made, not yet connected.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const VerbsConnectOptions& options);

  ClientHello Hello();
  // Connects to what the daemon answered and starts the thread.
  absl::Status Start(const ServerHello& hello);
  // Ends every batch, waits until the device is done with all buffers, and stops. Before the engine
  // is destroyed.
  void Stop();

  const ServerHello& server() const { return server_; }
  std::string Describe();
  absl::Status Health();
  ConnectionStats Stats();
  absl::StatusOr<std::shared_ptr<Region>> AddRegion(std::span<std::byte> memory);
  absl::StatusOr<std::shared_ptr<Region>> AddDeviceRegion(const DeviceBuffer& memory);
  void RemoveRegion(const Region* region);

  // A batch of so many pieces, all found good. False when it has ended at once: the connection is
  // lost, or the grant is fenced (STALE). Otherwise parcels follow, the last with `last`; AddParcel
  // waits for room and returns false when the batch is over meanwhile. Both leave memory for the
  // next parcel in `parcel`, whose size and contents mean nothing.
  bool Open(const std::shared_ptr<Batch>& batch, size_t pieces, std::vector<Stretch>& parcel);
  bool AddParcel(const std::shared_ptr<Batch>& batch, std::vector<Stretch>& parcel, bool last);
  // A batch that is not to be opened.
  void Refuse(const std::shared_ptr<Batch>& batch, size_t pieces, const absl::Status& why);
  absl::Status Wait(const std::shared_ptr<Batch>& batch);
  void Cancel(const std::shared_ptr<Batch>& batch);
  TransferTimes Times(const Batch& batch);
  // Lets no write under `grant` start, waits for those that run. True when the daemon is to be
  // told: for the first call, and unless a queue pair with writes on it was lost, for then only the
  // end of the connection says that nothing is on its way.
  bool CloseGate(GrantId grant);

 private:
  enum class ChunkKind : uint8_t { kData, kWord, kKeepalive };
  // In flight on one queue pair. `id` names it to the device (see kPlaceShift) and is another one
  // for each use of its place, so that its completions are not taken for those of an earlier use.
  struct Chunk {
    uint64_t id = 0;
    ChunkKind kind = ChunkKind::kData;
    uint32_t pair = 0;
    uint32_t count = 0;
    bool failed = false;
    bool direct = false;
    uint64_t bytes = 0;
    uint64_t bounced = 0;  // of these, by way of `area`
    std::optional<uint32_t> area;
    std::shared_ptr<Batch> batch;
    std::array<Stretch, kChunkRequests> stretches;   // one each request
    std::array<std::byte*, kChunkRequests> bounces;  // of requests that go by way of `area`
    uint32_t bounced_requests = 0;                   // which these are, one bit each
    std::vector<std::shared_ptr<Region>> regions;    // of the caller's memory that it touches
  };
  struct Pair {
    QueuePair handle;
    uint32_t psn = 0;
    uint32_t outstanding = 0;  // work requests
    bool broken = false;
    MonotonicTime broken_at{};
  };

  explicit Engine(const VerbsConnectOptions& options, Port port)
      : options_(options), port_(std::move(port)) {}

  // ---- engine_setup.cc, with Create, Hello, Start and the regions ----
  absl::Status OpenQueues();

  // ---- engine_post.cc ----
  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool PostChunk(const std::shared_ptr<Batch>& batch, uint32_t pair, uint32_t room)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddRequest(Chunk& chunk, const Stretch& stretch, std::byte* bounce, uint32_t local_key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Post(Chunk& chunk, ibv_wr_opcode opcode) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool FillPlain(Batch& batch, Chunk& chunk, uint32_t most) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LeaveFinishedParcel(Batch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool NextRequest(Batch& batch, Chunk& chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PostWordReads() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool PostWordRead(ChunkKind kind, const std::shared_ptr<Batch>& batch, WordSlot slot,
                    uint32_t pair) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<uint32_t> FreestPair(uint32_t limit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Chunk* TakeChunk(ChunkKind kind, uint32_t pair) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GiveChunk(Chunk& chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Enqueue(const std::shared_ptr<Batch>& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // ---- engine_end.cc ----
  void OnCompletion(const ibv_wc& completion, MonotonicTime now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Retire(Chunk& chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RetireData(Chunk& chunk, const std::shared_ptr<Batch>& batch)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RetireWord(Chunk& chunk, const std::shared_ptr<Batch>& batch)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Requeue(const Chunk& chunk, const std::shared_ptr<Batch>& batch)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CheckIfComplete(const std::shared_ptr<Batch>& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndEarly(const std::shared_ptr<Batch>& batch, const absl::Status& why, MonotonicTime now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Finish(Batch& batch, const absl::Status& outcome) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LeaveGate(Batch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BreakPair(uint32_t pair, MonotonicTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Lose(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SweepBatches(MonotonicTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SweepPairs(MonotonicTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Sweep(MonotonicTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // ---- engine.cc ----
  void Run();
  void Block();
  void WakeIfSleeping() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The thread is to sweep then, or earlier.
  void SweepBy(MonotonicTime when) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  MonotonicTime NextSweep() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CountStart(const Batch& batch, size_t pieces) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeSpare(std::vector<Stretch>& parcel) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const VerbsConnectOptions options_;
  const Port port_;
  GidEntry gid_;
  uint32_t max_rd_atomic_ = 0;  // of this side
  uint32_t depth_ = 0;          // places of one queue pair
  uint32_t window_ = 0;         // of these, for data
  ServerHello server_;

  // Destroyed from the last to the first.
  ProtectionDomain domain_;
  CompletionChannel channel_;
  CompletionQueue completions_;
  UniqueFd wake_;
  UniqueFd words_fd_;
  Mapping words_;  // uint64_t[chunks]: where grant words are read to
  MemoryRegion words_key_;
  std::vector<Chunk> chunks_ ABSL_GUARDED_BY(mutex_);

  WriteGate gate_;  // never waited for under the lock
  Mutex mutex_;
  // The list of the chunk that is made just now.
  std::array<ibv_send_wr, kChunkRequests> list_ ABSL_GUARDED_BY(mutex_){};
  ibv_wr_opcode list_opcode_ ABSL_GUARDED_BY(mutex_) = IBV_WR_RDMA_READ;  // in each of `list_`
  std::array<ibv_sge, kChunkRequests> pieces_ ABSL_GUARDED_BY(mutex_){};
  std::optional<BouncePool> bounce_ ABSL_GUARDED_BY(mutex_);
  RegionTable regions_ ABSL_GUARDED_BY(mutex_);
  std::vector<Pair> pairs_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t> free_chunks_ ABSL_GUARDED_BY(mutex_);
  std::array<std::deque<std::shared_ptr<Batch>>, 3> queues_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Batch>> live_ ABSL_GUARDED_BY(mutex_);      // without an outcome
  std::vector<std::shared_ptr<Batch>> to_check_ ABSL_GUARDED_BY(mutex_);  // all data is there
  std::vector<std::shared_ptr<Batch>> checks_ ABSL_GUARDED_BY(mutex_);    // PostWordReads' own
  std::vector<std::vector<Stretch>> spares_ ABSL_GUARDED_BY(mutex_);      // memory for parcels
  ConnectionStats stats_ ABSL_GUARDED_BY(mutex_);
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
  bool writes_adrift_ ABSL_GUARDED_BY(mutex_) = false;  // a queue pair broke with writes on it
  uint32_t outstanding_ ABSL_GUARDED_BY(mutex_) = 0;    // work requests, all queue pairs
  uint64_t bytes_in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  bool keepalive_out_ ABSL_GUARDED_BY(mutex_) = false;
  MonotonicTime last_heard_ ABSL_GUARDED_BY(mutex_){};
  // The earliest of what a sweep looks at, but for the keepalive: see NextSweep.
  MonotonicTime next_sweep_ ABSL_GUARDED_BY(mutex_) = MonotonicTime::max();
  MonotonicTime wakes_at_ ABSL_GUARDED_BY(mutex_) = MonotonicTime::max();  // while sleeping
  bool sleeping_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

}  // namespace oasiskv::fabric::verbs
