// The host's half of remote fetches: posts what a step on the GPU asks for, and releases it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/working_set/cuda/host/host_frames.h"
#include "client/working_set/cuda/kernels/remote.h"
#include "common/mutex.h"
#include "oasiskv/sequence_source.h"
#include "oasiskv/working_set.h"

namespace oasiskv {

// Thread contract: safe for concurrent use; a thread of its own does the work and calls nothing of
// CUDA, so that no kernel that waits for it can hold it up.
//
// The misses of all rows at a layer come as one exchange (see Box). They are fetched as whole
// layer-blocks, all heads, one batch for each source, straight into pinned memory, and stay there:
// a block crosses once. A block that is on its way already is waited for, not asked for twice. An
// exchange is released when nothing of it is in flight any more; what could not be had is simply
// not there, and the device treats it as refused.
class RemoteProxy {
 public:
  RemoteProxy(const WorkingSetOptions& options, std::vector<gpu::Box> boxes,
              uint32_t items_of_layer_box, uint32_t items_of_last_box);
  ~RemoteProxy();

  // `table`: pinned, [layer][max_blocks] addresses of layer-blocks, 0 where there is none yet.
  // `frames` gives their memory.
  void Add(uint32_t slot, std::shared_ptr<EntrySource> source, uint64_t* table, HostFrames* frames);
  // Nothing writes to the slot's memory any more when it returns; gives back what was taken for it.
  void Remove(uint32_t slot);

  absl::Status status() const;  // the first failure under LossPolicy::kFail
  void ClearStatus();
  uint64_t degraded(uint32_t slot) const;  // layers served without the source since Add

 private:
  using BlockKey = std::tuple<uint32_t, uint32_t, uint32_t>;  // slot, layer, block

  struct Batch {
    uint32_t slot = 0, layer = 0;
    std::vector<std::pair<uint32_t, std::byte*>> blocks;
    std::unique_ptr<PendingFetch> pending;
    bool ended = false;
  };
  struct Exchange {
    uint32_t box = 0;
    uint64_t sequence = 0;
    std::vector<std::shared_ptr<Batch>> batches;
  };
  struct Slot {
    std::shared_ptr<EntrySource> source;  // null: not a remote one
    uint64_t* table = nullptr;
    HostFrames* frames = nullptr;
    std::vector<std::byte*> taken;
    bool failed = false;  // kDegrade: ask its health before reading again
    uint64_t degraded = 0;
  };

  void Run();
  bool Pass();
  bool TakeExchange(uint32_t box) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Begin(Exchange* exchange, uint32_t slot, uint32_t layer, const std::set<uint32_t>& blocks)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End(Batch* batch, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fail(uint32_t slot, uint32_t layer, const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::atomic_ref<uint64_t> Entry(const Slot& slot, uint32_t layer, uint32_t block) const {
    return std::atomic_ref<uint64_t>(slot.table[uint64_t{layer} * options_.max_blocks + block]);
  }

  const WorkingSetOptions options_;
  const std::vector<gpu::Box> boxes_;
  const uint32_t items_of_layer_box_, items_of_last_box_;
  std::atomic<bool> stopping_{false};
  mutable Mutex mutex_;
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> seen_ ABSL_GUARDED_BY(mutex_);  // by box
  std::vector<std::shared_ptr<Batch>> batches_ ABSL_GUARDED_BY(mutex_);
  std::map<BlockKey, std::shared_ptr<Batch>> in_flight_ ABSL_GUARDED_BY(mutex_);
  std::vector<Exchange> exchanges_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace oasiskv
