// KV of which every value follows from its place, and an EntrySource over it that can fail.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "oasiskv/error.h"
#include "oasiskv/geometry.h"
#include "oasiskv/sequence_source.h"
#include "tests/support/narrow.h"

namespace oasiskv {

enum class Half { kKey = 0, kValue = 1 };

// One request's KV: small whole numbers, exact in every element type, so that sums are exact in any
// order and equal scores are frequent. With a grain, at most 32, multiples of one grain-th: as
// exact, but not in 8 bits.
class FakeKv {
 public:
  FakeKv(const Geometry& geometry, uint64_t seed, uint32_t grain = 1)
      : geometry_(geometry), seed_(seed), grain_(static_cast<int>(grain)) {}

  float Value(uint64_t token, uint32_t layer, uint32_t head, Half half, uint32_t d) const {
    uint64_t x = seed_;
    for (uint64_t part :
         {token, uint64_t{layer}, uint64_t{head}, static_cast<uint64_t>(half), uint64_t{d}}) {
      x = (x ^ part) * 0x9e3779b97f4a7c15u;
      x ^= x >> 29;
    }
    const int value = static_cast<int>((x >> 20) % (8 * grain_ + 1)) - 4 * grain_;
    return static_cast<float>(value) / static_cast<float>(grain_);
  }

  void Store(float value, std::byte* to) const {
    if (geometry_.element_type == ElementType::kFloat32) {
      std::memcpy(to, &value, 4);
      return;
    }
    const uint16_t half = NarrowBits(geometry_.element_type, value);
    std::memcpy(to, &half, 2);
  }

  // All keys (or values) of one token: [head][head_dim].
  std::vector<std::byte> Token(uint64_t token, uint32_t layer, Half half) const {
    std::vector<std::byte> out(geometry_.kv_heads * geometry_.key_bytes());
    for (uint32_t h = 0; h < geometry_.kv_heads; ++h)
      WriteKey(token, layer, h, half, &out[h * geometry_.key_bytes()]);
    return out;
  }

  // The whole entry of a block: K then V.
  std::vector<std::byte> Entry(uint32_t block, uint32_t layer, uint32_t head) const {
    std::vector<std::byte> out(geometry_.entry_bytes());
    const uint32_t halves = geometry_.packing == Packing::kLatent ? 1 : 2;
    for (uint32_t half = 0; half < halves; ++half) {
      for (uint32_t t = 0; t < geometry_.block_tokens; ++t) {
        WriteKey(uint64_t{block} * geometry_.block_tokens + t, layer, head, static_cast<Half>(half),
                 &out[half * geometry_.half_entry_bytes() + t * geometry_.key_bytes()]);
      }
    }
    return out;
  }

  float Bound(uint32_t block, uint32_t layer, uint32_t head, uint32_t d, bool high) const {
    float bound = Value(uint64_t{block} * geometry_.block_tokens, layer, head, Half::kKey, d);
    for (uint32_t t = 1; t < geometry_.block_tokens; ++t) {
      const float v =
          Value(uint64_t{block} * geometry_.block_tokens + t, layer, head, Half::kKey, d);
      bound = high ? std::max(bound, v) : std::min(bound, v);
    }
    return bound;
  }

  std::vector<std::byte> Summary(uint32_t block, uint32_t layer, uint32_t head) const {
    std::vector<std::byte> out(geometry_.summary_bytes());
    const uint32_t width = ElementBytes(geometry_.element_type);
    for (uint32_t d = 0; d < geometry_.head_dim; ++d) {
      Store(Bound(block, layer, head, d, false), &out[d * width]);
      Store(Bound(block, layer, head, d, true), &out[(geometry_.head_dim + d) * width]);
    }
    return out;
  }

 private:
  void WriteKey(uint64_t token, uint32_t layer, uint32_t head, Half half, std::byte* to) const {
    const uint32_t width = ElementBytes(geometry_.element_type);
    for (uint32_t d = 0; d < geometry_.head_dim; ++d) {
      Store(Value(token, layer, head, half, d), to + d * width);
    }
  }

  const Geometry geometry_;
  const uint64_t seed_;
  const int grain_;
};

// Thread contract: safe for concurrent use.
//
// Holds one request's prefill; takes what is written back. Bytes are written when a fetch ends, not
// when it begins.
class FakeSource : public EntrySource, public std::enable_shared_from_this<FakeSource> {
 public:
  FakeSource(const Geometry& geometry, uint64_t tokens, uint64_t seed, uint32_t grain = 1)
      : geometry_(geometry), tokens_(tokens), kv_(geometry, seed, grain) {}

  // What a test may set. `polls`: a fetch is done after so many looks at it.
  std::atomic<int> polls{0};
  std::atomic<int> delay_us{0};  // random sleep up to this in Fetch and WriteBack
  std::atomic<bool> keeps_fetched{false};
  std::vector<int32_t> first;  // set before Admit
  uint32_t first_k = 0;

  // While closed no fetch ends but by its deadline (or not even by that: `ignore_deadline`).
  void Close() { SetGate(false); }
  void Open() { SetGate(true); }
  std::atomic<bool> ignore_deadline{false};
  void FailFetches(absl::Status status) {
    MutexLock lock(mutex_);
    fetch_error_ = std::move(status);
  }
  void FailWriteBack(absl::Status status) {
    MutexLock lock(mutex_);
    write_error_ = std::move(status);
  }
  void SetHealth(absl::Status status) {
    MutexLock lock(mutex_);
    health_ = std::move(status);
  }

  int fetches() const { return fetches_.load(); }
  int entries() const { return entries_.load(); }
  int cancelled() const { return cancelled_.load(); }
  std::string wrong() const {  // the first thing the working set did wrong
    MutexLock lock(mutex_);
    return wrong_;
  }
  std::set<std::tuple<uint32_t, uint32_t>> written() const {  // (block, layer)
    MutexLock lock(mutex_);
    return written_;
  }
  const FakeKv& kv() const { return kv_; }

  const Geometry& geometry() const override { return geometry_; }
  uint64_t token_count() const override { return tokens_; }

  std::unique_ptr<PendingFetch> Fetch(std::span<const EntryRead> reads,
                                      TimePoint deadline) override {
    ++fetches_;
    entries_ += static_cast<int>(reads.size());
    Dawdle();
    return std::make_unique<Pending>(shared_from_this(), reads, deadline, polls.load());
  }

  absl::Status FetchSummaries(std::byte* into, TimePoint) override {
    MutexLock lock(mutex_);
    if (!fetch_error_.ok()) return fetch_error_;
    for (uint32_t b = 0; b < geometry_.BlocksFor(tokens_); ++b) {
      for (uint32_t l = 0; l < geometry_.layers; ++l) {
        for (uint32_t h = 0; h < geometry_.kv_heads; ++h, into += geometry_.summary_bytes()) {
          const auto summary = kv_.Summary(b, l, h);
          std::memcpy(into, summary.data(), summary.size());
        }
      }
    }
    return absl::OkStatus();
  }

  std::vector<int32_t> FirstTopK(uint32_t* k) const override {
    *k = first_k;
    return first;
  }

  absl::Status WriteBack(BlockIndex block, LayerIndex layer, std::span<const std::byte> entries,
                         std::span<const std::byte> summaries) override {
    Dawdle();
    MutexLock lock(mutex_);
    if (!write_error_.ok()) return write_error_;
    for (uint32_t h = 0; h < geometry_.kv_heads; ++h) {
      const auto entry = kv_.Entry(block.value(), layer.value(), h);
      const auto summary = kv_.Summary(block.value(), layer.value(), h);
      if (entries.size() != geometry_.layer_entries_bytes() ||
          summaries.size() != geometry_.layer_summaries_bytes() ||
          std::memcmp(&entries[h * entry.size()], entry.data(), entry.size()) != 0 ||
          std::memcmp(&summaries[h * summary.size()], summary.data(), summary.size()) != 0) {
        wrong_ = "wrong bytes written back";
      }
    }
    if (!written_.emplace(block.value(), layer.value()).second) wrong_ = "written back twice";
    return absl::OkStatus();
  }

  bool KeepsFetched() const override { return keeps_fetched; }
  absl::Status Health() const override {
    MutexLock lock(mutex_);
    return health_;
  }
  SourceStats Stats() const override { return {}; }

 private:
  class Pending : public PendingFetch {
   public:
    Pending(std::shared_ptr<FakeSource> source, std::span<const EntryRead> reads,
            TimePoint deadline, int polls)
        : source_(std::move(source)),
          reads_(reads.begin(), reads.end()),
          deadline_(deadline),
          polls_(polls) {}
    ~Pending() override { Cancel(); }

    bool Done() override {
      if (!ended_ && polls_-- <= 0) End(false);
      return ended_;
    }
    absl::Status Wait() override {
      if (!ended_) End(true);
      return status_;
    }
    void Cancel() override {
      if (ended_) return;
      ended_ = true;
      ++source_->cancelled_;
      status_ = MakeError(ErrorCode::kCancelled, "cancelled");
    }

   private:
    void End(bool wait) {
      MutexLock lock(source_->mutex_);
      while (!source_->open_) {
        const bool over = std::chrono::steady_clock::now() >= deadline_;
        if (over && !source_->ignore_deadline) {
          ended_ = true;
          status_ = MakeError(ErrorCode::kDeadlineExceeded, "fake deadline");
          return;
        }
        if (!wait) return;
        if (source_->ignore_deadline) {
          source_->opened_.Wait(source_->mutex_);
        } else {
          source_->opened_.WaitUntil(source_->mutex_, deadline_);
        }
      }
      ended_ = true;
      status_ = source_->Serve(reads_);
    }

    const std::shared_ptr<FakeSource> source_;
    const std::vector<EntryRead> reads_;
    const TimePoint deadline_;
    int polls_;
    bool ended_ = false;
    absl::Status status_;
  };

  absl::Status Serve(const std::vector<EntryRead>& reads) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!fetch_error_.ok()) {
      // A failing read has often written something already.
      for (const EntryRead& r : reads) std::memset(r.into, 0xee, geometry_.entry_bytes());
      return fetch_error_;
    }
    for (const EntryRead& r : reads) {
      const uint64_t end = (uint64_t{r.block.value()} + 1) * geometry_.block_tokens;
      const bool there = r.block.value() < geometry_.BlocksFor(tokens_) ||
                         written_.contains({r.block.value(), r.layer.value()});
      if (!there || r.layer.value() >= geometry_.layers || r.head.value() >= geometry_.kv_heads) {
        wrong_ = "asked for an entry that is not there: token " + std::to_string(end);
        return MakeError(ErrorCode::kOutOfRange, wrong_);
      }
      const auto entry = kv_.Entry(r.block.value(), r.layer.value(), r.head.value());
      std::memcpy(r.into, entry.data(), entry.size());
    }
    return absl::OkStatus();
  }

  void Dawdle() {
    const int most = delay_us.load();
    if (most == 0) return;
    const uint64_t x = (dawdled_.fetch_add(1) + 1) * 0x9e3779b97f4a7c15u;
    std::this_thread::sleep_for(std::chrono::microseconds((x >> 33) % most));
  }

  void SetGate(bool open) {
    MutexLock lock(mutex_);
    open_ = open;
    opened_.NotifyAll();
  }

  const Geometry geometry_;
  const uint64_t tokens_;
  const FakeKv kv_;
  std::atomic<int> fetches_{0}, entries_{0}, cancelled_{0};
  std::atomic<uint64_t> dawdled_{0};
  mutable Mutex mutex_;
  CondVar opened_;
  bool open_ ABSL_GUARDED_BY(mutex_) = true;
  absl::Status fetch_error_ ABSL_GUARDED_BY(mutex_);
  absl::Status write_error_ ABSL_GUARDED_BY(mutex_);
  absl::Status health_ ABSL_GUARDED_BY(mutex_);
  std::string wrong_ ABSL_GUARDED_BY(mutex_);
  std::set<std::tuple<uint32_t, uint32_t>> written_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace oasiskv
