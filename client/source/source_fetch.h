// One batch over all parts of a sequence source.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/source/host_cache.h"
#include "oasiskv/error.h"
#include "oasiskv/sequence_source.h"

namespace oasiskv::client {

// Where a head of the rank lies.
struct HeadPlace {
  uint32_t part = 0;
  HeadIndex head;  // within the part's shard
};

// What the source and its fetches share.
//
// Thread contract: constant after construction, except `direct_*` and `host_hits`, which are
// atomic.
struct SourceState {
  std::vector<SourcePart> parts;
  Geometry geometry;  // of the rank
  std::vector<HeadPlace> places;
  uint64_t token_count = 0;
  uint32_t prefill_blocks = 0;
  bool keep = false;
  std::shared_ptr<HostCache> cache;
  std::atomic<uint64_t> direct_entries{0}, summary_bytes{0}, host_hits{0}, written_back{0};
};

// Thread contract: see PendingFetch.
//
// A batch over all parts: entries that are here already are copied at once, entries that others are
// fetching are waited for, the rest is started on every part before any is awaited.
class SourceFetch : public PendingFetch {
 public:
  SourceFetch(std::shared_ptr<SourceState> shared, std::span<const EntryRead> entries,
              EntrySource::TimePoint deadline)
      : shared_(std::move(shared)), deadline_(deadline) {
    result_ = Check(entries);
    finished_ = !result_.ok();
    if (!finished_) Start(entries);
  }

  bool Done() override {
    if (finished_) return true;
    return std::all_of(direct_.begin(), direct_.end(), [](auto& t) { return t->Done(); }) &&
           std::all_of(awaited_.begin(), awaited_.end(), [](auto& a) { return a.flight->Done(); });
  }

  absl::Status Wait() override {
    while (!finished_) {
      std::vector<EntryRead> again;
      const absl::Status status = Round(&again);
      if (status.ok() && !again.empty()) {
        Start(again);
        continue;
      }
      Finish(status);
    }
    return result_;
  }

  void Cancel() override {
    if (finished_) return;
    for (auto& transfer : direct_) transfer->Cancel();
    Finish(MakeError(ErrorCode::kCancelled, "the fetch was cancelled"));
  }

 private:
  // An entry that comes by way of a slot.
  struct Awaited {
    std::shared_ptr<Flight> flight;
    std::shared_ptr<CacheSlot> slot;
    EntryRead entry;
  };

  absl::Status Check(std::span<const EntryRead> entries) const;
  void Start(std::span<const EntryRead> entries);
  std::vector<std::unique_ptr<PendingFetch>> Launch(
      const std::vector<std::vector<EntryRead>>& by_part) const;
  absl::Status Round(std::vector<EntryRead>* again);
  void CopyOut(CacheSlot& slot, const EntryRead& entry) const {
    std::memcpy(entry.into, shared_->cache->At(slot, entry.head.value()),
                shared_->geometry.entry_bytes());
  }
  void Finish(absl::Status status) {
    result_ = std::move(status);
    finished_ = true;
    direct_.clear();
    awaited_.clear();
    own_flight_ = nullptr;
  }

  const std::shared_ptr<SourceState> shared_;
  const EntrySource::TimePoint deadline_;
  bool finished_ = false;
  absl::Status result_;
  std::shared_ptr<Flight> own_flight_;
  std::vector<Awaited> awaited_;
  uint64_t direct_entries_ = 0;
  std::vector<std::unique_ptr<PendingFetch>> direct_;  // straight into the caller's buffers
};

}  // namespace oasiskv::client
