#include "client/source/host_cache.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "oasiskv/error.h"

namespace oasiskv::client {
namespace {

constexpr Duration kShortestNap = std::chrono::microseconds(20);
constexpr Duration kLongestNap = std::chrono::microseconds(500);

absl::Status TooLate() {
  return MakeError(ErrorCode::kDeadlineExceeded,
                   "the deadline passed while another fetch of the same entries was under way");
}

}  // namespace

Flight::~Flight() {
  transfers_.clear();  // cancels: only then may others write to the slots
  for (const Entry& claim : claims_) {
    cache_->Settle(*claim.slot, claim.head, HostCache::Arrival::kFailed);
  }
}

void Flight::Launch(std::vector<std::unique_ptr<PendingFetch>> transfers) {
  transfers_ = std::move(transfers);
  MutexLock lock(mutex_);
  driven_ = false;
  changed_.NotifyAll();
}

bool Flight::Done() {
  {
    MutexLock lock(mutex_);
    if (done_ || driven_) return done_;
    driven_ = true;
  }
  const bool done =
      std::all_of(transfers_.begin(), transfers_.end(), [](auto& t) { return t->Done(); });
  MutexLock lock(mutex_);
  driven_ = false;
  changed_.NotifyAll();
  return done;
}

absl::Status Flight::Drive(MonotonicTime deadline) {
  {
    MutexLock lock(mutex_);
    while (driven_ && !done_) {
      if (!changed_.WaitUntil(mutex_, deadline) && driven_ && !done_) return TooLate();
    }
    if (done_) return result_;
    driven_ = true;
  }
  absl::Status result;
  bool finished = true;
  for (auto& transfer : transfers_) {
    // A Wait cannot be interrupted: with less time than the transfer has, it is only polled.
    Duration nap = kShortestNap;
    while (deadline < deadline_ && !transfer->Done()) {
      if (Clock::Real().Now() >= deadline) {
        finished = false;
        break;
      }
      std::this_thread::sleep_for(nap);
      nap = std::min(nap * 2, kLongestNap);
    }
    if (!finished) break;
    const absl::Status status = transfer->Wait();
    if (result.ok()) result = status;
  }
  if (finished) {
    const auto arrival = result.ok() ? HostCache::Arrival::kPresent : HostCache::Arrival::kFailed;
    for (const Entry& claim : claims_) cache_->Settle(*claim.slot, claim.head, arrival);
    transfers_.clear();
    claims_.clear();
  }
  MutexLock lock(mutex_);
  driven_ = false;
  done_ = finished;
  result_ = result;
  changed_.NotifyAll();
  return finished ? result : TooLate();
}

HostCache::Claim HostCache::Get(uint32_t block, uint32_t layer, uint32_t head,
                                const std::shared_ptr<Flight>& mine) {
  MutexLock lock(mutex_);
  auto it = slots_.find(Key(block, layer));
  if (it == slots_.end()) {
    if (bytes_.load(std::memory_order_relaxed) + slot_bytes() > byte_limit_) return {};
    bytes_.fetch_add(slot_bytes(), std::memory_order_relaxed);
    it =
        slots_.emplace(Key(block, layer), Kept{std::make_shared<CacheSlot>(heads_, memory_)}).first;
  }
  const std::shared_ptr<CacheSlot>& slot = it->second.slot;
  if (slot->present[head]) return {Claim::Kind::kHit, slot, nullptr};
  if (auto flight = slot->flights[head].lock()) {
    return {Claim::Kind::kShared, slot, std::move(flight)};
  }
  // A flight that all have left is being cancelled at this moment: its memory is not free yet.
  if (slot->claimed[head]) return {};
  slot->claimed[head] = true;
  slot->flights[head] = mine;
  return {Claim::Kind::kMine, slot, mine};
}

std::shared_ptr<CacheSlot> HostCache::Find(uint32_t block, uint32_t layer, uint32_t head) const {
  MutexLock lock(mutex_);
  const auto it = slots_.find(Key(block, layer));
  if (it == slots_.end() || !it->second.slot->present[head]) return nullptr;
  return it->second.slot;
}

void HostCache::Settle(CacheSlot& slot, uint32_t head, Arrival arrival) {
  MutexLock lock(mutex_);
  if (arrival == Arrival::kPresent) {
    slot.present[head] = true;
    arrived_.fetch_add(1, std::memory_order_relaxed);
  }
  slot.claimed[head] = false;
  slot.flights[head].reset();
}

void HostCache::Store(uint32_t block, uint32_t layer, std::span<const std::byte> entries) {
  auto slot = std::make_shared<CacheSlot>(heads_, memory_);
  std::memcpy(slot->data, entries.data(), entries.size());
  slot->present.assign(heads_, true);
  std::shared_ptr<CacheSlot> replaced;  // freed after the lock is let go
  MutexLock lock(mutex_);
  Kept& kept = slots_[Key(block, layer)];
  if (kept.slot == nullptr) bytes_.fetch_add(slot_bytes(), std::memory_order_relaxed);
  replaced = std::exchange(kept.slot, std::move(slot));
  kept.stored = true;
  if (block < first_stored_.load(std::memory_order_relaxed)) {
    first_stored_.store(block, std::memory_order_release);
  }
}

bool HostCache::HasStored(uint32_t block, uint32_t layer) const {
  MutexLock lock(mutex_);
  const auto it = slots_.find(Key(block, layer));
  return it != slots_.end() && it->second.stored;
}

}  // namespace oasiskv::client
