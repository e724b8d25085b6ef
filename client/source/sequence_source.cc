#include "oasiskv/sequence_source.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/source/host_cache.h"
#include "client/source/source_fetch.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv {
namespace {

using client::HeadPlace;
using client::HostCache;
using client::SourceFetch;
using client::SourceState;
using TimePoint = EntrySource::TimePoint;

// Of the buffer in which one part's summaries wait for their places between the other parts'.
constexpr uint64_t kSummaryBufferBytes = uint64_t{8} << 20;

// Thread contract: see EntrySource.
class SequenceSource : public EntrySource {
 public:
  explicit SequenceSource(std::shared_ptr<SourceState> shared) : shared_(std::move(shared)) {}

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
  absl::StatusOr<std::vector<LocalPart>> LocalEntries() const override;
  absl::Status Health() const override {
    for (size_t p = 0; p < shared_->parts.size(); ++p) {
      absl::Status status = shared_->parts[p].reader->Health();
      if (!status.ok()) return Annotate(status, absl::StrCat("part ", p));
    }
    return absl::OkStatus();
  }
  SourceStats Stats() const override;

 private:
  const std::shared_ptr<SourceState> shared_;
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
  // Shards may have been sealed with different K; lists are best first, so all of them have the
  // length of the shortest.
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

absl::StatusOr<std::vector<LocalPart>> SequenceSource::LocalEntries() const {
  std::vector<LocalPart> out;
  for (const SourcePart& part : shared_->parts) {
    if (!part.reader->local()) return std::vector<LocalPart>();
  }
  uint32_t first_head = 0;
  for (size_t p = 0; p < shared_->parts.size(); ++p) {
    const Reader& reader = *shared_->parts[p].reader;
    auto frames = reader.Frames();
    if (!frames.ok()) return Annotate(frames.status(), absl::StrCat("part ", p));
    out.push_back({.first_head = first_head,
                   .head_count = reader.head_count(),
                   .entry_offset = reader.geometry().entry_offset(LayerIndex(0),
                                                                  HeadIndex(reader.first_head())),
                   .layer_stride = reader.geometry().layer_entries_bytes(),
                   .memory = *std::move(frames)});
    first_head += reader.head_count();
  }
  return out;
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

// Registers with the connection of every part. Where that fails fetches are copied, which is slower
// but equally correct.
std::vector<RegisteredBuffer> RegisterWithAll(const std::vector<SourcePart>& parts,
                                              std::span<std::byte> slab) {
  std::vector<RegisteredBuffer> registered;
  for (const SourcePart& part : parts) {
    auto buffer = part.reader->RegisterBuffer(slab);
    if (buffer.ok()) {
      registered.push_back(*std::move(buffer));
    } else if (static LogGate gate; gate.Pass()) {
      LogWarning("client", absl::StrCat("host cache without direct reads: ",
                                        std::string(buffer.status().message())));
    }
  }
  return registered;
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
  auto shared = std::make_shared<SourceState>();
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
  shared->cache = std::make_shared<HostCache>(
      shared->geometry, options.host_cache_bytes,
      [parts](std::span<std::byte> slab) { return RegisterWithAll(parts, slab); });
  shared->parts = std::move(parts);
  return std::make_shared<SequenceSource>(std::move(shared));
}

}  // namespace oasiskv
