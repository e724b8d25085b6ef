// The client's half of the verbs fabric: one lock, one thread, and the parts that they drive.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/fabric/verbs/buffers.h"
#include "common/fabric/verbs/client/alarm.h"
#include "common/fabric/verbs/client/batch.h"
#include "common/fabric/verbs/client/completer.h"
#include "common/fabric/verbs/client/link.h"
#include "common/fabric/verbs/client/poster.h"
#include "common/fabric/verbs/client/sweeper.h"
#include "common/fabric/verbs/client/traffic.h"
#include "common/fabric/verbs/verbs.h"
#include "common/fabric/write_gate.h"
#include "common/mapped_memory.h"
#include "common/mutex.h"

namespace oasiskv::fabric::verbs {

// Thread contract: safe for concurrent use. One lock guards everything; whoever has work (the
// thread that starts a batch, the engine's own after completions) posts it.
//
// The engine's thread looks for completions while there are any to come, and sleeps on the device's
// event when none came for a while.
//
//   Open, AddParcel -> Poster -> device -> Completer -> Wait, Cancel
//                                 Sweeper -^  (deadlines, broken queue pairs, keepalive)
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

  const ServerHello& server() const { return link_.server(); }
  std::string Describe();
  absl::Status Health();
  ConnectionStats Stats();
  absl::StatusOr<std::shared_ptr<Region>> AddRegion(std::span<std::byte> memory);
  absl::StatusOr<std::shared_ptr<Region>> AddDeviceRegion(const DeviceBuffer& memory);
  void RemoveRegion(const Region* region);

  // A batch of `pieces` pieces, all checked. False when it has ended at once: the connection is
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
  Engine(Link link, UniqueFd wake, std::vector<Pair> pairs, BouncePool bounce);

  void Run();
  void Block();
  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CountStart(const Batch& batch, size_t pieces) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<Region> Add(std::span<std::byte> memory, MemoryRegion key);

  Link link_;  // constant after Start
  const UniqueFd wake_;
  WriteGate gate_;  // never waited for under the lock

  Mutex mutex_;
  // Each uses those above it.
  Traffic traffic_ ABSL_GUARDED_BY(mutex_);
  RegionTable regions_ ABSL_GUARDED_BY(mutex_);
  Alarm alarm_ ABSL_GUARDED_BY(mutex_);
  Poster poster_ ABSL_GUARDED_BY(mutex_);
  Completer completer_ ABSL_GUARDED_BY(mutex_);
  Sweeper sweeper_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

}  // namespace oasiskv::fabric::verbs
