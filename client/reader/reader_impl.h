// What a Reader is made of.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "client/reader/committed.h"
#include "client/reader/fetch.h"
#include "common/mutex.h"
#include "oasiskv/reader.h"

namespace oasiskv {

// Thread contract: safe for concurrent use.
class Reader::Impl {
 public:
  Impl(const std::shared_ptr<client::Core>& core, const std::shared_ptr<client::Session>& session,
       std::shared_ptr<client::GrantState> grant, const ReaderSpec& spec,
       client::Attached attached);

  std::unique_ptr<PendingFetch> FetchEntries(std::span<const EntryRead> entries,
                                             TimePoint deadline);
  std::unique_ptr<PendingFetch> FetchLayers(std::span<const LayerRead> layers, TimePoint deadline);
  absl::Status FetchSummaries(BlockIndex first, uint32_t count, std::byte* into,
                              TimePoint deadline);
  absl::Status FetchTopK(LayerIndex layer, HeadIndex head, std::span<const int32_t> list,
                         std::byte* into, int64_t stride, TimePoint deadline);
  absl::StatusOr<RegisteredBuffer> RegisterBuffer(std::span<std::byte> memory) const {
    return client::RegisterBuffer(right_->core, memory);
  }
  absl::StatusOr<LocalFrames> Frames() const;
  absl::Status Release();
  absl::Status Health() const { return right_->Check(); }
  TimePoint DefaultDeadline() const;

  // Constant after construction.
  const Geometry geometry;
  const uint32_t first_head, head_count;
  const bool sealed;
  const uint64_t token_count;
  const uint32_t blocks;
  const client::CommittedSet committed;
  const uint32_t first_topk_k;
  const std::vector<int32_t> first_topk;
  const std::string blob;
  const bool local;  // the connection's Local works

 private:
  // OUT_OF_RANGE, FOREIGN, NOT_COMMITTED, in that order; `what` names the item.
  absl::Status CheckBlock(const std::string& what, uint32_t block) const;
  absl::Status CheckLayer(const std::string& what, uint64_t layer) const;
  absl::Status CheckHead(const std::string& what, uint32_t head) const;
  absl::Status CheckCommitted(const std::string& what, uint32_t layer, uint32_t block) const;
  absl::Status CheckItem(const char* list, size_t index, uint32_t block, uint32_t layer,
                         uint32_t head, const std::byte* into) const;
  void AddEntryCheck(client::FetchPlan* plan, size_t index, uint32_t block, uint32_t layer,
                     uint32_t head, std::byte* at) const;
  std::unique_ptr<PendingFetch> Start(client::FetchPlan plan, TimePoint deadline);
  std::unique_ptr<PendingFetch> Fail(const absl::Status& error);
  std::unique_ptr<PendingFetch> Track(std::shared_ptr<client::FetchState> state);
  // A released, dead or expired reader says so before it looks at what is asked of it.
  absl::Status Usable() const { return right_->Check(); }

  const std::shared_ptr<client::ReadRight> right_;
  const std::vector<uint32_t> checksums_;  // [block][layer][head of the shard]; empty: not verified

  Mutex mutex_;
  // Fetches that may be in flight, for Release; swept when it has doubled.
  std::vector<std::weak_ptr<client::FetchState>> in_flight_ ABSL_GUARDED_BY(mutex_);
  size_t sweep_at_ ABSL_GUARDED_BY(mutex_) = 64;
};

}  // namespace oasiskv
