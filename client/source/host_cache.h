// Decode-side host memory of one request: blocks that were fetched, and blocks that decoding
// completed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "client/source/registered_slabs.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "oasiskv/geometry.h"
#include "oasiskv/reader.h"

namespace oasiskv::client {

class Flight;

// The entries of one (layer, block), all heads of the rank one after the other, each present or
// not. Bytes that are present never change: a decoded block takes the place of a fetched one as a
// slot of its own.
struct CacheSlot {
  CacheSlot(uint32_t heads, std::shared_ptr<RegisteredSlabs> its_memory)
      : memory(std::move(its_memory)),
        data(memory->Take()),
        present(heads),
        claimed(heads),
        flights(heads) {}
  ~CacheSlot() { memory->Give(data); }
  CacheSlot(const CacheSlot&) = delete;
  CacheSlot& operator=(const CacheSlot&) = delete;

  const std::shared_ptr<RegisteredSlabs> memory;
  std::byte* const data;
  // Guarded by the cache's mutex.
  std::vector<bool> present;
  std::vector<bool> claimed;                   // a flight may still write to it
  std::vector<std::weak_ptr<Flight>> flights;  // who is fetching it
};

// Thread contract: safe for concurrent use.
//
// When an entry is missing, one caller fetches it and the others wait for it. Fetched
// entries are kept up to the byte limit and never evicted; decoded blocks are always kept, for
// there is no other copy.
class HostCache {
 public:
  HostCache(const Geometry& geometry, uint64_t byte_limit, RegisteredSlabs::Register register_slab)
      : heads_(geometry.kv_heads),
        entry_bytes_(geometry.entry_bytes()),
        byte_limit_(byte_limit),
        memory_(std::make_shared<RegisteredSlabs>(slot_bytes(), std::move(register_slab))) {}

  struct Claim {
    enum class Kind {
      kHit,     // present in `slot`
      kMine,    // the caller is to fetch it into `slot`, under the flight it gave
      kShared,  // `flight`, which may be `mine`, is fetching it into `slot`
      kNoRoom,  // not kept: fetch it elsewhere
    };
    Kind kind = Kind::kNoRoom;
    std::shared_ptr<CacheSlot> slot;
    std::shared_ptr<Flight> flight;
  };
  // `mine` becomes the flight of an entry that is claimed.
  Claim Get(uint32_t block, uint32_t layer, uint32_t head, const std::shared_ptr<Flight>& mine);
  // Only what is present; null otherwise.
  std::shared_ptr<CacheSlot> Find(uint32_t block, uint32_t layer, uint32_t head) const;
  // The fetch of an entry into `slot` ended; one that failed can be claimed again.
  enum class Arrival { kPresent, kFailed };
  void Settle(CacheSlot& slot, uint32_t head, Arrival arrival);
  // A block that decoding completed: entries [head].
  void Store(uint32_t block, uint32_t layer, std::span<const std::byte> entries);
  bool HasStored(uint32_t block, uint32_t layer) const;
  // False: `block` and those below it were never stored, which saves a lookup.
  bool MayHaveStored(uint32_t block) const {
    return block >= first_stored_.load(std::memory_order_acquire);
  }

  std::byte* At(CacheSlot& slot, uint32_t head) const {
    return slot.data + uint64_t{head} * entry_bytes_;
  }
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  uint64_t arrived() const { return arrived_.load(std::memory_order_relaxed); }  // fetched entries

 private:
  static uint64_t Key(uint32_t block, uint32_t layer) { return uint64_t{layer} << 32 | block; }
  uint64_t slot_bytes() const { return uint64_t{heads_} * entry_bytes_; }

  const uint32_t heads_, entry_bytes_;
  const uint64_t byte_limit_;
  const std::shared_ptr<RegisteredSlabs> memory_;  // fetches land in it directly
  std::atomic<uint64_t> bytes_{0}, arrived_{0};
  std::atomic<uint32_t> first_stored_{UINT32_MAX};  // the lowest block of Store
  mutable Mutex mutex_;
  struct Kept {
    std::shared_ptr<CacheSlot> slot;
    bool stored = false;
  };
  std::unordered_map<uint64_t, Kept> slots_ ABSL_GUARDED_BY(mutex_);
};

// Thread contract: safe for concurrent use.
//
// A batch on its way into slots. Whoever needs one of its entries may drive it: it belongs to no
// thread, so a fetch never waits for another that no thread drives. It holds the slots it
// writes to; when everybody has left it, it is cancelled and its entries can be claimed again.
class Flight {
 public:
  Flight(std::shared_ptr<HostCache> cache, MonotonicTime deadline)
      : cache_(std::move(cache)), deadline_(deadline) {}

  ~Flight();

  // By its maker, before anybody else can drive it to an end: until Launch returns, Drive waits.
  void Add(std::shared_ptr<CacheSlot> slot, uint32_t head) {
    claims_.push_back({std::move(slot), head});
  }
  void Launch(std::vector<std::unique_ptr<PendingFetch>> transfers);

  bool Done();
  // The outcome, or DEADLINE_EXCEEDED when `deadline` comes first (the flight goes on then).
  absl::Status Drive(MonotonicTime deadline);

 private:
  struct Entry {
    std::shared_ptr<CacheSlot> slot;
    uint32_t head = 0;
  };

  const std::shared_ptr<HostCache> cache_;
  const MonotonicTime deadline_;  // the transfers' own
  Mutex mutex_;
  CondVar changed_;
  bool driven_ ABSL_GUARDED_BY(mutex_) = true;  // a thread is at transfers_; at first its maker
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status result_ ABSL_GUARDED_BY(mutex_);
  // Of the driver. The transfers go before the memory they write to.
  std::vector<Entry> claims_;
  std::vector<std::unique_ptr<PendingFetch>> transfers_;
};

}  // namespace oasiskv::client
