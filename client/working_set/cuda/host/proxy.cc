#include "client/working_set/cuda/host/proxy.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "oasiskv/error.h"

namespace oasiskv {
namespace {

using std::chrono::steady_clock;

// After work the thread looks without pause for a while, then sleeps between looks, the longer the
// less there is to do.
constexpr std::chrono::microseconds kSpin{100};
constexpr std::chrono::microseconds kShortNap{20};
constexpr std::chrono::milliseconds kBusy{20};
constexpr std::chrono::microseconds kLongNap{200};

uint64_t Acquire(uint64_t& word) {
  return std::atomic_ref<uint64_t>(word).load(std::memory_order_acquire);
}

}  // namespace

RemoteProxy::RemoteProxy(const WorkingSetOptions& options, std::vector<gpu::Box> boxes,
                         uint32_t items_of_layer_box, uint32_t items_of_last_box)
    : options_(options),
      boxes_(std::move(boxes)),
      items_of_layer_box_(items_of_layer_box),
      items_of_last_box_(items_of_last_box),
      slots_(options.max_requests),
      seen_(boxes_.size(), 0),
      thread_([this] { Run(); }) {}

RemoteProxy::~RemoteProxy() {
  stopping_.store(true);
  thread_.join();
  MutexLock lock(mutex_);
  for (const auto& batch : batches_) batch->pending->Cancel();
}

void RemoteProxy::Add(uint32_t slot, std::shared_ptr<EntrySource> source, uint64_t* table,
                      HostFrames* frames) {
  MutexLock lock(mutex_);
  Slot& state = slots_[slot];
  state.source = std::move(source);
  state.table = table;
  state.frames = frames;
}

void RemoteProxy::Remove(uint32_t slot) {
  std::shared_ptr<EntrySource> gone;  // let go of outside the lock
  MutexLock lock(mutex_);
  for (const auto& batch : batches_) {
    if (batch->slot != slot || batch->ended) continue;
    batch->pending->Cancel();
    batch->ended = true;
  }
  std::erase_if(batches_, [&](const auto& batch) { return batch->slot == slot; });
  std::erase_if(in_flight_, [&](const auto& item) { return std::get<0>(item.first) == slot; });
  Slot& state = slots_[slot];
  for (std::byte* unit : state.taken) state.frames->Give(unit);
  gone = std::move(state.source);
  state = Slot();
}

absl::Status RemoteProxy::status() const {
  MutexLock lock(mutex_);
  return status_;
}

void RemoteProxy::ClearStatus() {
  MutexLock lock(mutex_);
  status_ = absl::OkStatus();
}

uint64_t RemoteProxy::degraded(uint32_t slot) const {
  MutexLock lock(mutex_);
  return slots_[slot].degraded;
}

void RemoteProxy::Run() {
  auto last = steady_clock::now();
  while (!stopping_.load(std::memory_order_relaxed)) {
    const bool moved = Pass();
    const auto now = steady_clock::now();
    if (moved) last = now;
    if (now - last < kSpin) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(now - last < kBusy ? kShortNap : kLongNap);
    }
  }
}

bool RemoteProxy::Pass() {
  MutexLock lock(mutex_);
  bool moved = false;
  for (uint32_t b = 0; b < boxes_.size(); ++b) moved |= TakeExchange(b);
  for (const auto& batch : batches_) {
    if (!batch->pending->Done()) continue;
    End(batch.get(), batch->pending->Wait());
    moved = true;
  }
  std::erase_if(batches_, [](const auto& batch) { return batch->ended; });
  std::erase_if(exchanges_, [&](const Exchange& exchange) {
    mutex_.AssertHeld();
    const bool over = std::all_of(exchange.batches.begin(), exchange.batches.end(),
                                  [](const auto& batch) { return batch->ended; });
    if (!over) return false;
    // Exchanges of a box end in any order, for the device may have given one up.
    std::atomic_ref<uint64_t> released(boxes_[exchange.box].header->released);
    if (released.load(std::memory_order_relaxed) < exchange.sequence) {
      released.store(exchange.sequence, std::memory_order_release);
    }
    moved = true;
    return true;
  });
  return moved;
}

bool RemoteProxy::TakeExchange(uint32_t box) {
  gpu::BoxHeader& header = *boxes_[box].header;
  const uint64_t sequence = Acquire(header.ready);
  if (sequence == seen_[box]) return false;
  seen_[box] = sequence;
  Exchange exchange{.box = box, .sequence = sequence, .batches = {}};
  const uint32_t most = box + 1 == boxes_.size() ? items_of_last_box_ : items_of_layer_box_;
  const uint32_t layer = header.layer;
  const uint32_t count = std::min(header.count, most);
  std::map<uint32_t, std::set<uint32_t>> wanted;  // slot -> blocks
  for (uint32_t i = 0; i < count; ++i) {
    const gpu::PlanItem item = boxes_[box].items[i];
    if (item.slot >= slots_.size() || item.block < 0 ||
        static_cast<uint32_t>(item.block) >= options_.max_blocks) {
      continue;
    }
    wanted[item.slot].insert(static_cast<uint32_t>(item.block));
  }
  std::atomic_thread_fence(std::memory_order_acquire);
  // The device has begun another one meanwhile: nobody waits for this any more.
  const bool whole = Acquire(header.writing) == sequence && layer < options_.geometry.layers;
  if (whole) {
    for (const auto& [slot, blocks] : wanted) {
      if (slots_[slot].source != nullptr) Begin(&exchange, slot, layer, blocks);
    }
  }
  exchanges_.push_back(std::move(exchange));
  return true;
}

void RemoteProxy::Begin(Exchange* exchange, uint32_t slot, uint32_t layer,
                        const std::set<uint32_t>& blocks) {
  Slot& state = slots_[slot];
  std::vector<uint32_t> missing;
  for (uint32_t block : blocks) {
    if (Entry(state, layer, block).load(std::memory_order_relaxed) != 0) continue;
    const auto same = in_flight_.find({slot, layer, block});
    if (same == in_flight_.end()) {
      missing.push_back(block);
    } else if (std::find(exchange->batches.begin(), exchange->batches.end(), same->second) ==
               exchange->batches.end()) {
      exchange->batches.push_back(same->second);
    }
  }
  if (missing.empty()) return;
  if (state.failed) {
    if (absl::Status health = state.source->Health(); !health.ok()) {
      return Fail(slot, layer, health);
    }
  }
  auto batch = std::make_shared<Batch>();
  batch->slot = slot;
  batch->layer = layer;
  const Geometry& geometry = options_.geometry;
  std::vector<EntryRead> reads;
  for (uint32_t block : missing) {
    std::byte* const unit = state.frames->Take();
    if (unit == nullptr) {
      for (const auto& [_, given] : batch->blocks) state.frames->Give(given);
      return Fail(slot, layer,
                  MakeError(ErrorCode::kInternal, "no pinned memory is left for a fetched block"));
    }
    batch->blocks.emplace_back(block, unit);
    for (uint32_t h = 0; h < geometry.kv_heads; ++h) {
      reads.push_back({BlockIndex(block), LayerIndex(layer), HeadIndex(h),
                       unit + uint64_t{h} * geometry.entry_bytes()});
    }
  }
  batch->pending = state.source->Fetch(reads, steady_clock::now() + options_.late_deadline);
  if (batch->pending == nullptr) {
    for (const auto& [_, given] : batch->blocks) state.frames->Give(given);
    return Fail(slot, layer, MakeError(ErrorCode::kInternal, "the source began no read"));
  }
  for (uint32_t block : missing) in_flight_[{slot, layer, block}] = batch;
  exchange->batches.push_back(batch);
  batches_.push_back(std::move(batch));
}

void RemoteProxy::End(Batch* batch, const absl::Status& status) {
  batch->ended = true;
  Slot& state = slots_[batch->slot];
  for (const auto& [block, unit] : batch->blocks) {
    in_flight_.erase({batch->slot, batch->layer, block});
    if (status.ok()) {
      state.taken.push_back(unit);
      Entry(state, batch->layer, block)
          .store(reinterpret_cast<uint64_t>(unit), std::memory_order_release);
    } else {
      state.frames->Give(unit);
    }
  }
  if (status.ok()) {
    state.failed = false;
  } else {
    Fail(batch->slot, batch->layer, status);
  }
}

void RemoteProxy::Fail(uint32_t slot, uint32_t layer, const absl::Status& status) {
  if (options_.late == LatePolicy::kSkip && ErrorCodeOf(status) == ErrorCode::kDeadlineExceeded) {
    return;
  }
  if (options_.loss == LossPolicy::kDegrade) {
    ++slots_[slot].degraded;
    slots_[slot].failed = true;
    return;
  }
  if (status_.ok()) {
    status_ = Annotate(status,
                       absl::StrFormat("slot %d, layer %d: blocks were not fetched", slot, layer));
  }
}

}  // namespace oasiskv
