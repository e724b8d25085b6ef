#include "client/source/source_fetch.h"

#include "absl/strings/str_format.h"

namespace oasiskv::client {

absl::Status SourceFetch::Check(std::span<const EntryRead> entries) const {
  const Geometry& g = shared_->geometry;
  for (size_t i = 0; i < entries.size(); ++i) {
    const EntryRead& e = entries[i];
    if (e.layer.value() >= g.layers || e.head.value() >= g.kv_heads) {
      return MakeError(ErrorCode::kOutOfRange,
                       absl::StrFormat("entries[%d]: layer %d, head %d; the rank has %d layers and "
                                       "%d heads",
                                       i, e.layer.value(), e.head.value(), g.layers, g.kv_heads));
    }
    if (e.into == nullptr) {
      return MakeError(ErrorCode::kInvalidArgument,
                       absl::StrFormat("entries[%d]: `into` is null", i));
    }
    if (e.block.value() >= shared_->prefill_blocks &&
        !shared_->cache->HasStored(e.block.value(), e.layer.value())) {
      return MakeError(
          ErrorCode::kOutOfRange,
          absl::StrFormat("entries[%d]: block %d of layer %d; the prefill has %d "
                          "blocks, and it was not written back",
                          i, e.block.value(), e.layer.value(), shared_->prefill_blocks));
    }
  }
  return absl::OkStatus();
}

void SourceFetch::Start(std::span<const EntryRead> entries) {
  HostCache& cache = *shared_->cache;
  direct_.clear();
  awaited_.clear();
  direct_entries_ = 0;
  own_flight_ = nullptr;
  std::vector<std::vector<EntryRead>> to_caller(shared_->parts.size()),
      to_slots(shared_->parts.size());
  const auto add = [&](std::vector<std::vector<EntryRead>>& lists, EntryRead entry,
                       std::byte* into) {
    const HeadPlace place = shared_->places[entry.head.value()];
    lists[place.part].push_back({entry.block, entry.layer, place.head, into});
  };
  uint64_t hits = 0;
  for (const EntryRead& entry : entries) {
    const uint32_t block = entry.block.value(), layer = entry.layer.value(),
                   head = entry.head.value();
    if (!shared_->keep) {
      std::shared_ptr<CacheSlot> slot =
          cache.MayHaveStored(block) ? cache.Find(block, layer, head) : nullptr;
      if (slot != nullptr) {
        CopyOut(*slot, entry);
        ++hits;
        continue;
      }
      add(to_caller, entry, entry.into);
      ++direct_entries_;
      continue;
    }
    if (own_flight_ == nullptr) own_flight_ = std::make_shared<Flight>(shared_->cache, deadline_);
    HostCache::Claim claim = cache.Get(block, layer, head, own_flight_);
    switch (claim.kind) {
      case HostCache::Claim::Kind::kHit:
        CopyOut(*claim.slot, entry);
        ++hits;
        break;
      case HostCache::Claim::Kind::kMine:
        own_flight_->Add(claim.slot, head);
        add(to_slots, entry, cache.At(*claim.slot, head));
        awaited_.push_back({own_flight_, std::move(claim.slot), entry});
        break;
      case HostCache::Claim::Kind::kShared:
        awaited_.push_back({std::move(claim.flight), std::move(claim.slot), entry});
        break;
      case HostCache::Claim::Kind::kNoRoom:
        add(to_caller, entry, entry.into);
        ++direct_entries_;
        break;
    }
  }
  shared_->host_hits.fetch_add(hits, std::memory_order_relaxed);
  if (own_flight_ != nullptr) own_flight_->Launch(Launch(to_slots));
  direct_ = Launch(to_caller);
}

std::vector<std::unique_ptr<PendingFetch>> SourceFetch::Launch(
    const std::vector<std::vector<EntryRead>>& by_part) const {
  std::vector<std::unique_ptr<PendingFetch>> started;
  for (size_t p = 0; p < by_part.size(); ++p) {
    if (by_part[p].empty()) continue;
    started.push_back(shared_->parts[p].reader->FetchEntries(by_part[p], deadline_));
  }
  return started;
}

// Waits for everything that was started. Entries whose fetcher gave up before this batch's own
// deadline go to `again`.
absl::Status SourceFetch::Round(std::vector<EntryRead>* again) {
  absl::Status first;
  const auto note = [&](const absl::Status& status) {
    if (first.ok()) first = status;
  };
  for (auto& transfer : direct_) note(transfer->Wait());
  if (first.ok()) {
    shared_->direct_entries.fetch_add(direct_entries_, std::memory_order_relaxed);
  }
  if (own_flight_ != nullptr) note(own_flight_->Drive(deadline_));
  const Flight* last = nullptr;
  absl::Status outcome;
  for (const Awaited& awaited : awaited_) {
    if (awaited.flight.get() != last) {
      last = awaited.flight.get();
      outcome = awaited.flight->Drive(deadline_);
    }
    if (outcome.ok()) {
      CopyOut(*awaited.slot, awaited.entry);
      continue;
    }
    const ErrorCode code = ErrorCodeOf(outcome);
    const bool others_end =
        awaited.flight != own_flight_ &&
        (code == ErrorCode::kDeadlineExceeded || code == ErrorCode::kCancelled) &&
        Clock::Real().Now() < deadline_;
    if (others_end) {
      again->push_back(awaited.entry);
    } else {
      note(outcome);
    }
  }
  return first;
}

}  // namespace oasiskv::client
