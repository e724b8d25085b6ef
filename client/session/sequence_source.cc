#include "oasiskv/sequence_source.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/session/host_cache.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv {
namespace {

using client::CacheSlot;
using client::Flight;
using client::HostCache;
using TimePoint = EntrySource::TimePoint;
using Claim = HostCache::Claim;

// Of the buffer in which one part's summaries wait for their places between the other parts'.
constexpr uint64_t kSummaryBufferBytes = uint64_t{8} << 20;

// Where a head of the rank lies.
struct HeadPlace {
  uint32_t part = 0;
  HeadIndex head;  // within the part's shard
};

// What the source and its fetches share.
//
// Thread contract: constant after construction, except `direct_*` and `host_hits`, which are
// atomic.
struct Shared {
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
  SourceFetch(std::shared_ptr<Shared> shared, std::span<const EntryRead> entries,
              TimePoint deadline)
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

  const std::shared_ptr<Shared> shared_;
  const TimePoint deadline_;
  bool finished_ = false;
  absl::Status result_;
  std::shared_ptr<Flight> own_flight_;
  std::vector<Awaited> awaited_;
  uint64_t direct_entries_ = 0;
  std::vector<std::unique_ptr<PendingFetch>> direct_;  // straight into the caller's buffers
};

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
    Claim claim = cache.Get(block, layer, head, own_flight_);
    switch (claim.kind) {
      case Claim::Kind::kHit:
        CopyOut(*claim.slot, entry);
        ++hits;
        break;
      case Claim::Kind::kMine:
        own_flight_->Add(claim.slot, head);
        add(to_slots, entry, cache.At(*claim.slot, head));
        awaited_.push_back({own_flight_, std::move(claim.slot), entry});
        break;
      case Claim::Kind::kShared:
        awaited_.push_back({std::move(claim.flight), std::move(claim.slot), entry});
        break;
      case Claim::Kind::kNoRoom:
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

// Thread contract: see EntrySource.
class SequenceSource : public EntrySource {
 public:
  explicit SequenceSource(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  const Geometry& geometry() const override { return shared_->geometry; }
  uint64_t token_count() const override { return shared_->token_count; }
  std::unique_ptr<PendingFetch> Fetch(std::span<const EntryRead> entries,
                                      TimePoint deadline) override {
    return std::make_unique<SourceFetch>(shared_, entries, deadline);
  }
  absl::Status FetchSummaries(std::byte* into, TimePoint deadline) override;
  std::vector<int32_t> FirstTopK(uint32_t* k) const override;
  absl::Status WriteBack(BlockIndex block, LayerIndex layer, std::span<const std::byte> entries,
                         std::span<const std::byte> summaries) override;
  bool KeepsFetched() const override { return shared_->keep; }
  absl::Status Health() const override {
    for (size_t p = 0; p < shared_->parts.size(); ++p) {
      absl::Status status = shared_->parts[p].reader->Health();
      if (!status.ok()) return Annotate(status, absl::StrCat("part ", p));
    }
    return absl::OkStatus();
  }
  SourceStats Stats() const override;

 private:
  const std::shared_ptr<Shared> shared_;
};

absl::Status SequenceSource::FetchSummaries(std::byte* into, TimePoint deadline) {
  const Geometry& g = shared_->geometry;
  const uint32_t blocks = shared_->prefill_blocks;
  const uint64_t rank_layer = uint64_t{g.kv_heads} * g.summary_bytes();
  if (shared_->parts.size() == 1) {
    OASISKV_RETURN_IF_ERROR(
        shared_->parts[0].reader->FetchSummaries(BlockIndex(0), blocks, into, deadline));
  } else {
    std::vector<std::byte> buffer;
    uint64_t first_head = 0;
    for (const SourcePart& part : shared_->parts) {
      const uint64_t part_layer = uint64_t{part.reader->head_count()} * g.summary_bytes();
      const uint64_t part_block = g.layers * part_layer;
      const auto step = static_cast<uint32_t>(
          std::clamp<uint64_t>(kSummaryBufferBytes / part_block, 1, std::max(blocks, 1u)));
      buffer.resize(step * part_block);
      for (uint32_t b = 0; b < blocks; b += step) {
        const uint32_t count = std::min(step, blocks - b);
        OASISKV_RETURN_IF_ERROR(
            part.reader->FetchSummaries(BlockIndex(b), count, buffer.data(), deadline));
        for (uint64_t row = 0; row < uint64_t{count} * g.layers; ++row) {
          std::memcpy(
              into + (uint64_t{b} * g.layers + row) * rank_layer + first_head * g.summary_bytes(),
              buffer.data() + row * part_layer, part_layer);
        }
      }
      first_head += part.reader->head_count();
    }
  }
  shared_->summary_bytes.fetch_add(uint64_t{blocks} * g.layers * rank_layer,
                                   std::memory_order_relaxed);
  return absl::OkStatus();
}

std::vector<int32_t> SequenceSource::FirstTopK(uint32_t* k) const {
  // Shards may have been sealed with different K; lists are best first, so the shortest is what all
  // have.
  uint32_t common = shared_->parts[0].reader->first_topk_k();
  for (const SourcePart& part : shared_->parts) {
    common = std::min(common, part.reader->first_topk_k());
  }
  *k = common;
  std::vector<int32_t> out;
  if (common == 0) return out;
  const Geometry& g = shared_->geometry;
  out.reserve(uint64_t{g.layers} * g.kv_heads * common);
  for (uint32_t l = 0; l < g.layers; ++l) {
    for (const HeadPlace& place : shared_->places) {
      const Reader& reader = *shared_->parts[place.part].reader;
      const uint64_t list = uint64_t{l} * reader.geometry().kv_heads + place.head.value();
      const auto from = reader.first_topk().subspan(list * reader.first_topk_k(), common);
      out.insert(out.end(), from.begin(), from.end());
    }
  }
  return out;
}

absl::Status SequenceSource::WriteBack(BlockIndex block, LayerIndex layer,
                                       std::span<const std::byte> entries,
                                       std::span<const std::byte> summaries) {
  const Geometry& g = shared_->geometry;
  if (layer.value() >= g.layers) {
    return MakeError(ErrorCode::kOutOfRange, absl::StrFormat("WriteBack: layer %d; the rank has %d",
                                                             layer.value(), g.layers));
  }
  // Blocks that the prefill filled are immutable; the one it filled in part may be completed by
  // decoding.
  if (uint64_t{block.value() + 1} * g.block_tokens <= shared_->token_count) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrFormat("WriteBack: block %d is the prefill's (%d tokens)",
                                     block.value(), shared_->token_count));
  }
  if (entries.size() != g.layer_entries_bytes() || summaries.size() != g.layer_summaries_bytes()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrFormat("WriteBack: %d bytes of entries and %d of summaries; %d and "
                                     "%d are expected",
                                     entries.size(), summaries.size(), g.layer_entries_bytes(),
                                     g.layer_summaries_bytes()));
  }
  shared_->cache->Store(block.value(), layer.value(), entries);
  shared_->written_back.fetch_add(g.kv_heads, std::memory_order_relaxed);
  return absl::OkStatus();
}

SourceStats SequenceSource::Stats() const {
  SourceStats stats;
  stats.remote_entries =
      shared_->direct_entries.load(std::memory_order_relaxed) + shared_->cache->arrived();
  stats.remote_bytes = stats.remote_entries * shared_->geometry.entry_bytes() +
                       shared_->summary_bytes.load(std::memory_order_relaxed);
  stats.host_hits = shared_->host_hits.load(std::memory_order_relaxed);
  stats.host_bytes = shared_->cache->bytes();
  stats.written_back = shared_->written_back.load(std::memory_order_relaxed);
  return stats;
}

absl::Status CheckPart(size_t index, const Reader& reader, const Reader& first,
                       uint32_t expected_head) {
  const std::string what = absl::StrCat("part ", index);
  const Geometry& g = reader.geometry();
  if (!reader.sealed()) {
    return Annotate(MakeError(ErrorCode::kNotSealed,
                              "the reader attached before the sequence was sealed; attach with "
                              "wait_for_seal"),
                    what);
  }
  // All but the heads, which differ from shard to shard.
  Geometry same = g;
  same.kv_heads = first.geometry().kv_heads;
  same.first_head = first.geometry().first_head;
  OASISKV_RETURN_IF_ERROR(Annotate(first.geometry().CheckSame(same), what));
  if (g.first_head + reader.first_head() != expected_head) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrFormat("%s begins at the model's KV head %d; the parts before it end "
                                     "at %d: parts must follow each other without gap",
                                     what, g.first_head + reader.first_head(), expected_head));
  }
  if (reader.token_count() != first.token_count()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrFormat("%s has %d tokens, part 0 has %d: not shards of one request",
                                     what, reader.token_count(), first.token_count()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<EntrySource>> MakeSequenceSource(
    std::vector<SourcePart> parts, const SequenceSourceOptions& options) {
  if (parts.empty()) {
    return MakeError(ErrorCode::kInvalidArgument, "a sequence source needs at least one part");
  }
  for (size_t p = 0; p < parts.size(); ++p) {
    if (parts[p].reader != nullptr) continue;
    return MakeError(ErrorCode::kInvalidArgument, absl::StrCat("part ", p, " has no reader"));
  }
  auto shared = std::make_shared<Shared>();
  const Reader& first = *parts[0].reader;
  const uint32_t rank_first_head = first.geometry().first_head + first.first_head();
  uint32_t next_head = rank_first_head;
  bool all_local = true;
  for (size_t p = 0; p < parts.size(); ++p) {
    const Reader& reader = *parts[p].reader;
    OASISKV_RETURN_IF_ERROR(CheckPart(p, reader, first, next_head));
    for (uint32_t h = 0; h < reader.head_count(); ++h) {
      shared->places.push_back({static_cast<uint32_t>(p), HeadIndex(reader.first_head() + h)});
    }
    next_head += reader.head_count();
    all_local = all_local && reader.local();
  }
  shared->geometry = first.geometry();
  shared->geometry.kv_heads = next_head - rank_first_head;
  shared->geometry.first_head = rank_first_head;
  shared->token_count = first.token_count();
  shared->prefill_blocks = shared->geometry.BlocksFor(shared->token_count);
  shared->keep = options.host_cache == HostCachePolicy::kAlways ||
                 (options.host_cache == HostCachePolicy::kAuto && !all_local);
  shared->cache = std::make_shared<HostCache>(shared->geometry, options.host_cache_bytes);
  shared->parts = std::move(parts);
  return std::make_shared<SequenceSource>(std::move(shared));
}

}  // namespace oasiskv
