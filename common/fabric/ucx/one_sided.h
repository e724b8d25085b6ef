// Batches by get and put: the client's side of a connection whose keys the device checks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/fabric/ucx/batch.h"
#include "common/fabric/ucx/bounce.h"
#include "common/fabric/ucx/remote_memory.h"
#include "common/fabric/ucx/worker.h"
#include "common/mapped_memory.h"
#include "oasiskv/ids.h"

namespace oasiskv::fabric::ucx {

// Thread contract: used by the connection's progress thread; CheckPlaces by any, once made.
//
// All bytes go through a bounce ring of its own, so a batch may end whenever it likes: what UCX has
// in flight touches the ring only, and stretches of it come back when UCX is done with them.
class OneSided {
 public:
  // `payload` is that of a Keys message. `lose` is called when an operation fails; the connection
  // then calls Drop. The worker must outlive it, the endpoint its last operation. Errors: those of
  // registering memory; PEER_LOST for keys that are none.
  static absl::StatusOr<std::unique_ptr<OneSided>> Create(
      Worker& worker, ucp_ep* endpoint, const Keys& keys, std::span<const std::byte> payload,
      uint64_t window_bytes, std::shared_ptr<Ledger> ledger,
      std::function<void(const absl::Status&)> lose);
  ~OneSided();

  OneSided(const OneSided&) = delete;
  OneSided& operator=(const OneSided&) = delete;

  // Errors: OUT_OF_RANGE when the grant places a stretch, or its word, outside what there are keys
  // for: the device would refuse it, but by breaking the connection.
  absl::Status CheckPlaces(const Batch& batch) const;

  // Begins the next operation of a batch. False: there is no room.
  bool Issue(const std::shared_ptr<Batch>& batch);
  // Begins what may follow what has ended: flushes, and reads of grant words. True when it did.
  bool Advance();
  bool idle() const { return operations_.empty(); }
  // The connection is lost: begins nothing more, and lets fences that wait for writes go on. They
  // send no word of it, for what is on its way may still arrive.
  void Drop();
  // Once the endpoint is closed, and before the worker goes.
  void ReleaseKeys() {
    arenas_.clear();
    words_.clear();
  }

 private:
  class BatchOperation;
  class DataOperation;
  class FlushOperation;
  class WordOperation;
  using Pass = std::shared_ptr<WriteGate::Pass>;

  struct Region {
    uint64_t address = 0;
    uint64_t bytes = 0;
    RemoteKey key;
  };

  OneSided(Worker& worker, ucp_ep* endpoint, uint64_t window_bytes, std::shared_ptr<Ledger> ledger,
           std::function<void(const absl::Status&)> lose)
      : worker_(worker),
        endpoint_(endpoint),
        ledger_(std::move(ledger)),
        lose_(std::move(lose)),
        ring_(window_bytes) {}

  absl::Status MakeRing();
  absl::Status TakeKeys(const Keys& keys, std::span<const std::byte> payload);
  std::byte* at(uint64_t offset) const { return memory_.data() + offset; }
  bool ReadWord(const std::shared_ptr<Batch>& batch);
  // The last operation of a batch's data is done.
  void DataDone(const std::shared_ptr<Batch>& batch);
  void Failed(absl::string_view what, absl::string_view error);

  Worker& worker_;
  ucp_ep* const endpoint_;
  const std::shared_ptr<Ledger> ledger_;
  const std::function<void(const absl::Status&)> lose_;
  std::vector<Region> arenas_;
  std::vector<Region> words_;  // one

  BounceRing ring_;
  Mapping memory_;  // the ring's
  ucp_mem* registered_ = nullptr;

  bool dropped_ = false;
  absl::flat_hash_set<BatchOperation*> operations_;  // in flight
  std::vector<std::shared_ptr<Batch>> flush_due_;    // writes whose data UCX has taken
  std::vector<std::shared_ptr<Batch>> word_due_;     // data arrived, here or there
  std::vector<Pass> unflushed_;                      // of puts that UCX has taken
  bool flushing_ = false;
};

}  // namespace oasiskv::fabric::ucx
