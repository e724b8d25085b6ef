// Learns what became of work requests, and ends batches.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "common/fabric/verbs/client/alarm.h"
#include "common/fabric/verbs/client/batch.h"
#include "common/fabric/verbs/client/link.h"
#include "common/fabric/verbs/client/poster.h"
#include "common/fabric/verbs/client/traffic.h"
#include "common/fabric/write_gate.h"

namespace oasiskv::fabric::verbs {

// Thread contract: guarded by the engine's mutex.
class Completer {
 public:
  Completer(const Link& link, Traffic& flight, Poster& poster, WriteGate& gate, Alarm& alarm)
      : link_(link), traffic_(flight), poster_(poster), gate_(gate), alarm_(alarm) {}

  // From here on the batch has an outcome to come. False when it has ended at once: the connection
  // is lost, or the grant is fenced (STALE).
  bool Begin(const std::shared_ptr<Batch>& batch);
  void OnCompletion(const ibv_wc& completion, MonotonicTime now);
  // The chunk is over, by its completion or because its queue pair is gone.
  void Retire(Chunk& chunk);
  // When all data of the batch is there, the grant word is to be read.
  void CheckIfComplete(const std::shared_ptr<Batch>& batch);
  // Nothing more of the batch is posted. It has its outcome, `why`, once the device can no longer
  // touch the caller's memory for it.
  void EndEarly(const std::shared_ptr<Batch>& batch, const absl::Status& why, MonotonicTime now);
  void Finish(Batch& batch, const absl::Status& outcome);
  // What is on the queue pair comes back as flushed.
  void BreakPair(uint32_t pair, MonotonicTime now);
  // Breaks all queue pairs and ends all batches. The first reason counts.
  void Lose(const absl::Status& why);

  const std::vector<std::shared_ptr<Batch>>& live() const { return live_; }
  bool writes_lost() const { return writes_lost_; }

 private:
  void RetireData(Chunk& chunk, const std::shared_ptr<Batch>& batch);
  void RetireWord(Chunk& chunk, const std::shared_ptr<Batch>& batch);
  void Requeue(const Chunk& chunk, const std::shared_ptr<Batch>& batch);
  void LeaveGate(Batch& batch);

  const Link& link_;
  Traffic& traffic_;
  Poster& poster_;
  WriteGate& gate_;
  Alarm& alarm_;
  std::vector<std::shared_ptr<Batch>> live_;  // without an outcome
  bool writes_lost_ = false;                  // a queue pair broke with writes on it
};

}  // namespace oasiskv::fabric::verbs
