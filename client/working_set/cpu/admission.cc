#include "client/working_set/cpu/admission.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "client/working_set/cpu/plan.h"
#include "client/working_set/first_residents.h"
#include "client/working_set/options.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv {
namespace {

// Keeps the link busy while pages of the next layer are listed.
constexpr size_t kLayersInFlight = 4;

class Admitter {
 public:
  Admitter(const WorkingSetContext& context, EntrySource& source, std::span<LayerState> states,
           StagingPool* staging)
      : context_(context),
        geometry_(context.options.geometry),
        source_(source),
        states_(states),
        staging_(staging),
        complete_(static_cast<uint32_t>(source.token_count() / geometry_.block_tokens)),
        local_tokens_(static_cast<uint32_t>(source.token_count() % geometry_.block_tokens)) {}

  absl::StatusOr<uint64_t> Run() {
    OASISKV_RETURN_IF_ERROR(PullSummaries());
    OASISKV_RETURN_IF_ERROR(ChooseResidents());
    OASISKV_RETURN_IF_ERROR(PullEntries());
    return bytes_;
  }

 private:
  struct LayerRead {
    std::vector<EntryRead> reads;
    StagingPool::Buffer sink;  // entries that only the source's memory is to keep
    std::unique_ptr<PendingFetch> pending;
  };

  absl::Status PullSummaries() {
    const uint32_t blocks = geometry_.BlocksFor(source_.token_count());
    const uint64_t each = geometry_.summary_bytes();
    const uint64_t total = uint64_t{blocks} * geometry_.layers * geometry_.layer_summaries_bytes();
    if (total == 0) return absl::OkStatus();
    const std::unique_ptr<std::byte[]> all(new std::byte[total]);
    if (auto s = source_.FetchSummaries(all.get(), AdmissionDeadline(context_.options)); !s.ok()) {
      return Annotate(s, "fetching summaries");
    }
    bytes_ += total;
    const std::byte* from = all.get();
    for (uint32_t b = 0; b < blocks; ++b) {
      for (LayerState& state : states_) {
        for (uint32_t h = 0; h < geometry_.kv_heads; ++h, from += each) {
          std::byte* const to = context_.pool.Summaries(state.layer, state.slot, h) + b * each;
          std::memcpy(to, from, each);
          RoundSummary(context_.options, to);
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status ChooseResidents() {
    OASISKV_ASSIGN_OR_RETURN(const std::vector<int32_t> maps,
                             FirstResidents(geometry_, context_.resident(), source_));
    const size_t each = size_t{geometry_.kv_heads} * context_.resident();
    for (LayerState& state : states_) {
      std::copy_n(maps.begin() + static_cast<ptrdiff_t>(state.layer * each), each,
                  state.map.begin());
    }
    return absl::OkStatus();
  }

  // The reads of one layer, by rising block and head, so that neighbours can be joined.
  LayerRead ListLayer(LayerState& state) {
    const uint32_t k = context_.resident();
    struct Place {
      int32_t block;
      uint32_t head;
      std::byte* into;
    };
    std::vector<Place> places;
    for (uint32_t h = 0; h < geometry_.kv_heads; ++h) {
      for (uint32_t p = 0; p < k; ++p) {
        const int32_t block = state.map[size_t{h} * k + p];
        if (block == kNoBlock) continue;
        places.push_back({block, h, context_.pool.Page(state.layer, state.slot, h, p)});
      }
      if (local_tokens_ > 0) {
        places.push_back({static_cast<int32_t>(complete_), h,
                          context_.pool.Page(state.layer, state.slot, h, k)});
      }
    }
    std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
      return a.block != b.block ? a.block < b.block : a.head < b.head;
    });
    LayerRead read;
    const bool whole = source_.KeepsFetched();
    size_t sunk = 0;
    for (size_t i = 0; i < places.size();) {
      const int32_t block = places[i].block;
      for (uint32_t h = 0; h < geometry_.kv_heads; ++h) {
        std::byte* into = nullptr;
        if (i < places.size() && places[i].block == block && places[i].head == h) {
          into = places[i++].into;
        } else if (!whole) {
          continue;
        }
        sunk += into == nullptr ? 1 : 0;
        read.reads.push_back({BlockIndex(block), LayerIndex(state.layer), HeadIndex(h), into});
      }
    }
    const uint64_t entry = geometry_.entry_bytes();
    read.sink = staging_->Take(sunk * entry);
    std::byte* next = read.sink->data.get();
    for (EntryRead& one : read.reads) {
      if (one.into != nullptr) continue;
      one.into = next;
      next += entry;
    }
    return read;
  }

  // The oldest read.
  absl::Status FinishOne(std::deque<LayerRead>* in_flight) {
    const LayerRead read = std::move(in_flight->front());
    in_flight->pop_front();
    if (read.pending == nullptr) {
      return MakeError(ErrorCode::kInternal, "the source began no read");
    }
    if (auto s = read.pending->Wait(); !s.ok()) return Annotate(s, "fetching the first blocks");
    bytes_ += read.reads.size() * uint64_t{geometry_.entry_bytes()};
    return absl::OkStatus();
  }

  absl::Status PullEntries() {
    std::deque<LayerRead> in_flight;
    for (LayerState& state : states_) {
      LayerRead read = ListLayer(state);
      if (read.reads.empty()) continue;
      read.pending = source_.Fetch(read.reads, AdmissionDeadline(context_.options));
      in_flight.push_back(std::move(read));
      if (in_flight.size() >= kLayersInFlight) OASISKV_RETURN_IF_ERROR(FinishOne(&in_flight));
    }
    while (!in_flight.empty()) OASISKV_RETURN_IF_ERROR(FinishOne(&in_flight));
    for (LayerState& state : states_) {
      state.complete = complete_;
      state.local_tokens = local_tokens_;
    }
    return absl::OkStatus();
  }

  const WorkingSetContext& context_;
  const Geometry& geometry_;
  EntrySource& source_;
  const std::span<LayerState> states_;
  StagingPool* const staging_;
  const uint32_t complete_;
  const uint32_t local_tokens_;
  uint64_t bytes_ = 0;
};

}  // namespace

absl::StatusOr<uint64_t> Admission(const WorkingSetContext& context, EntrySource& source,
                                   std::span<LayerState> states, StagingPool* staging) {
  absl::StatusOr<uint64_t> bytes = Admitter(context, source, states, staging).Run();
  if (!bytes.ok()) {
    for (LayerState& state : states) state.Clear(context.heads(), context.resident());
  }
  return bytes;
}

}  // namespace oasiskv
