#include "client/working_set/cuda/host/gpu_slot.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <set>

#include "absl/strings/str_format.h"
#include "client/selection/select.h"
#include "client/selection/summary.h"
#include "client/working_set/cuda/host/launch.h"
#include "client/working_set/first_residents.h"
#include "client/working_set/options.h"
#include "common/cuda/status.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv {

absl::Status GpuSlotPool::Create(const gpu::Shape& shape) {
  remote_tables.resize(shape.slots);
  part_tables.resize(shape.slots);
  const uint64_t items = uint64_t{shape.layers} * shape.kv_heads * shape.resident;
  OASISKV_ASSIGN_OR_RETURN(
      plan, cuda::DeviceBuffer::Create(
                items * sizeof(gpu::PlanItem) + shape.layers * sizeof(uint32_t), "admissions"));
  OASISKV_ASSIGN_OR_RETURN(error_memory,
                           cuda::PinnedBuffer::Create(sizeof(gpu::ErrorWord), "admissions"));
  error = error_memory.As<gpu::ErrorWord>();
  return absl::OkStatus();
}

HostFrames& GpuSlotPool::Units(uint64_t bytes) {
  std::unique_ptr<HostFrames>& frames_of_size = frames[bytes];
  if (frames_of_size == nullptr) frames_of_size = std::make_unique<HostFrames>(bytes, &budget);
  return *frames_of_size;
}

GpuSlot::~GpuSlot() {
  for (const auto& [frames, unit] : own) frames->Give(unit);
  for (const auto& [frames, units] : reserved) frames->Release(units);
}

absl::Status ForgetSlot(const AdmissionContext& context, uint32_t slot) {
  const uint32_t heads = context.shape.kv_heads;
  uint64_t* const table = context.memory.Frames(slot);
  OASISKV_CUDA_RETURN(
      cudaMemsetAsync(table, 0, context.shape.max_blocks * sizeof(*table), context.stream));
  const std::vector<gpu::HeadSource> none(heads, gpu::HeadSource{.frames = table});
  OASISKV_CUDA_RETURN(cudaMemcpyAsync(context.memory.sources + size_t{slot} * heads, none.data(),
                                      heads * sizeof(gpu::HeadSource), cudaMemcpyHostToDevice,
                                      context.stream));
  OASISKV_CUDA_RETURN(cudaStreamSynchronize(context.stream));
  return absl::OkStatus();
}

namespace {

constexpr size_t kLayersInFlight = 4;
// Nothing of the request runs yet, so that filling its pages may use more of the GPU than a step's
// transfers do.
constexpr uint32_t kAdmissionCtas = 16;

// A request's key summaries, from [block][layer][head] as sources give them to
// [layer][slot][head][block] on the device, in the pool's type; returns the source's bytes when
// they are there.
absl::StatusOr<uint64_t> CopySummaries(const AdmissionContext& c, EntrySource& source,
                                       uint32_t slot, EntrySource::TimePoint deadline) {
  const Geometry& geometry = c.options.base.geometry;
  const uint32_t blocks = geometry.BlocksFor(source.token_count());
  if (blocks == 0) return 0;
  const uint64_t source_each = geometry.summary_bytes(), each = c.shape.summary_bytes;
  const uint64_t of_block = uint64_t{geometry.layers} * geometry.layer_summaries_bytes();
  const std::unique_ptr<std::byte[]> all(new std::byte[blocks * of_block]);
  if (auto s = source.FetchSummaries(all.get(), deadline); !s.ok()) {
    return Annotate(s, "fetching summaries");
  }
  const uint64_t of_layer = blocks * each * geometry.kv_heads;
  if (c.pool.staging.size() < 2 * of_layer) {
    OASISKV_CUDA_RETURN(cudaStreamSynchronize(c.stream));
    OASISKV_ASSIGN_OR_RETURN(c.pool.staging,
                             cuda::PinnedBuffer::Create(2 * of_layer, "staging of summaries"));
  }
  cuda::Event used[2];
  for (cuda::Event& event : used) {
    OASISKV_ASSIGN_OR_RETURN(event, cuda::Event::Create());
  }
  for (uint32_t l = 0; l < geometry.layers; ++l) {
    // An event that was never recorded is past.
    OASISKV_CUDA_RETURN(cudaEventSynchronize(used[l % 2].get()));
    std::byte* const staging = c.pool.staging.data() + (l % 2) * of_layer;
    for (uint32_t h = 0; h < geometry.kv_heads; ++h) {
      std::byte* to = staging + h * blocks * each;
      const std::byte* from = all.get() + (uint64_t{l} * geometry.kv_heads + h) * source_each;
      for (uint32_t b = 0; b < blocks; ++b, to += each, from += of_block) {
        if (c.shape.summaries == SummaryType::kAsKeys) {
          std::memcpy(to, from, each);
        } else {
          SummaryToFloat8(geometry.element_type, geometry.head_dim, from, to);
        }
      }
    }
    const gpu::LayerMemory& layer = c.memory.layers[l];
    for (uint32_t h = 0; h < geometry.kv_heads; ++h) {
      std::byte* const to = layer.summaries + slot * layer.summaries_slot_stride +
                            uint64_t{h} * c.shape.max_blocks * each;
      OASISKV_CUDA_RETURN(cudaMemcpyAsync(to, staging + h * blocks * each, blocks * each,
                                          cudaMemcpyHostToDevice, c.stream));
    }
    OASISKV_CUDA_RETURN(cudaEventRecord(used[l % 2].get(), c.stream));
  }
  OASISKV_CUDA_RETURN(cudaEventSynchronize(used[0].get()));
  OASISKV_CUDA_RETURN(cudaEventSynchronize(used[1].get()));
  return blocks * of_block;
}

class Admitter {
 public:
  Admitter(const AdmissionContext& context, std::shared_ptr<EntrySource> source, uint32_t slot)
      : c_(context),
        geometry_(context.options.base.geometry),
        slot_(slot),
        made_(std::make_unique<GpuSlot>()),
        complete_(static_cast<uint32_t>(source->token_count() / geometry_.block_tokens)),
        local_tokens_(static_cast<uint32_t>(source->token_count() % geometry_.block_tokens)) {
    made_->source = std::move(source);
    const uint64_t decoded =
        (uint64_t{local_tokens_} + c_.options.max_new_tokens) / geometry_.block_tokens;
    decoded_ = static_cast<uint32_t>(std::min<uint64_t>(decoded, c_.shape.max_blocks - complete_));
  }

  absl::Status Run() {
    OASISKV_ASSIGN_OR_RETURN(maps_, FirstResidents(geometry_, c_.shape.resident, *made_->source));
    OASISKV_ASSIGN_OR_RETURN(parts_, made_->source->LocalEntries());
    made_->remote = parts_.empty();
    OASISKV_RETURN_IF_ERROR(ResetState());
    OASISKV_RETURN_IF_ERROR(made_->remote ? PlaceRemote() : PlaceLocal());
    OASISKV_ASSIGN_OR_RETURN(
        const uint64_t summaries,
        CopySummaries(c_, *made_->source, slot_, AdmissionDeadline(c_.options.base)));
    made_->admission_bytes += summaries;
    OASISKV_RETURN_IF_ERROR(FillPages());
    OASISKV_RETURN_IF_ERROR(FillLocalBlock());
    OASISKV_CUDA_RETURN(cudaStreamSynchronize(c_.stream));
    return CheckArrival();
  }
  std::unique_ptr<GpuSlot> Take() { return std::move(made_); }

 private:
  size_t heads_resident() const { return size_t{geometry_.kv_heads} * c_.shape.resident; }

  template <typename T>
  absl::Status Upload(T* to, const T* from, uint64_t count) {
    OASISKV_CUDA_RETURN(
        cudaMemcpyAsync(to, from, count * sizeof(T), cudaMemcpyHostToDevice, c_.stream));
    return absl::OkStatus();
  }
  template <typename T>
  absl::Status Fill(T* at, int byte, uint64_t count) {
    OASISKV_CUDA_RETURN(cudaMemsetAsync(at, byte, count * sizeof(T), c_.stream));
    return absl::OkStatus();
  }

  absl::Status ResetState() {
    const size_t each = heads_resident(), at = slot_ * each;
    const gpu::SlotState state{.complete = complete_, .local_tokens = local_tokens_};
    for (const gpu::LayerMemory& layer : c_.memory.layers) {
      OASISKV_RETURN_IF_ERROR(Fill(layer.map + at, 0xff, each));
      OASISKV_RETURN_IF_ERROR(Fill(layer.predicted + at, 0xff, each));
      OASISKV_RETURN_IF_ERROR(Fill(layer.stamps + at, 0, each));
      OASISKV_RETURN_IF_ERROR(Upload(layer.state + slot_, &state, 1));
      OASISKV_RETURN_IF_ERROR(Fill(layer.use + slot_, 0, 1));
      if (layer.entered != nullptr) OASISKV_RETURN_IF_ERROR(Fill(layer.entered + at, 0, each));
    }
    return Fill(c_.memory.counters + slot_, 0, 1);
  }

  // Pinned units of this request's own, given back with it.
  absl::Status Reserve(HostFrames* frames, uint64_t units) {
    OASISKV_RETURN_IF_ERROR(frames->Reserve(units));
    made_->reserved.emplace_back(frames, units);
    return absl::OkStatus();
  }
  std::byte* TakeUnit(HostFrames* frames) {
    std::byte* const unit = frames->Take();
    made_->own.emplace_back(frames, unit);
    return unit;
  }

  absl::Status PlaceLocal() {
    std::vector<gpu::HeadSource> sources(geometry_.kv_heads);
    uint32_t next_head = 0;
    for (size_t p = 0; p < parts_.size(); ++p) {
      const LocalPart& part = parts_[p];
      if (part.first_head != next_head || part.head_count == 0 ||
          part.head_count > geometry_.kv_heads - next_head ||
          part.memory.frames.size() < complete_) {
        return MakeError(ErrorCode::kInvalidArgument,
                         absl::StrFormat("part %d of the source holds heads %d to %d of %d and %d "
                                         "frames of %d: its LocalEntries are wrong",
                                         p, part.first_head, part.first_head + part.head_count,
                                         geometry_.kv_heads, part.memory.frames.size(), complete_));
      }
      next_head += part.head_count;
      for (const auto& mapping : part.memory.mappings) {
        OASISKV_ASSIGN_OR_RETURN(auto registered,
                                 cuda::HostRegistration::Get(mapping, part.memory.keep));
        made_->registrations.push_back(std::move(registered));
      }
      std::vector<uint64_t> frames(c_.shape.max_blocks, 0);
      for (uint32_t b = 0; b < complete_; ++b) {
        frames[b] = reinterpret_cast<uint64_t>(part.memory.frames[b]);
      }
      // Decoded blocks lie in frames of this process, in the same layout.
      HostFrames& units =
          c_.pool.Units(part.entry_offset + (geometry_.layers - 1) * part.layer_stride +
                        uint64_t{part.head_count} * geometry_.entry_bytes());
      OASISKV_RETURN_IF_ERROR(Reserve(&units, decoded_));
      for (uint32_t b = 0; b < decoded_; ++b) {
        frames[complete_ + b] = reinterpret_cast<uint64_t>(TakeUnit(&units));
      }
      OASISKV_ASSIGN_OR_RETURN(uint64_t* const table, TableOfPart(p));
      OASISKV_RETURN_IF_ERROR(Upload(table, frames.data(), frames.size()));
      for (uint32_t h = 0; h < part.head_count; ++h) {
        sources[part.first_head + h] = {
            .frames = table,
            .entry_offset = part.entry_offset + uint64_t{h} * geometry_.entry_bytes(),
            .layer_stride = part.layer_stride,
            .grant_word = part.memory.grant_word,
            .epoch = part.memory.epoch};
      }
    }
    if (next_head != geometry_.kv_heads) {
      return MakeError(ErrorCode::kInvalidArgument,
                       absl::StrFormat("the source's LocalEntries hold %d heads of %d", next_head,
                                       geometry_.kv_heads));
    }
    return UploadSources(sources);
  }

  absl::StatusOr<uint64_t*> TableOfPart(size_t part) {
    if (part == 0) return c_.memory.Frames(slot_);
    auto& tables = c_.pool.part_tables[slot_];
    while (tables.size() < part) {
      OASISKV_ASSIGN_OR_RETURN(
          cuda::DeviceBuffer table,
          cuda::DeviceBuffer::Create(c_.shape.max_blocks * sizeof(uint64_t), "a frame table"));
      tables.push_back(std::move(table));
    }
    return tables[part - 1].As<uint64_t>();
  }

  absl::Status UploadSources(const std::vector<gpu::HeadSource>& sources) {
    return Upload(c_.memory.sources + size_t{slot_} * geometry_.kv_heads, sources.data(),
                  sources.size());
  }

  absl::Status PlaceRemote() {
    if (!c_.options.remote_sources) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "the source's frames are not this host's memory, and "
                       "GpuWorkingSetOptions.remote_sources is false; set it, or read over shm");
    }
    const uint64_t table_items = uint64_t{geometry_.layers} * c_.shape.max_blocks;
    cuda::PinnedBuffer& memory = c_.pool.remote_tables[slot_];
    if (memory.data() == nullptr) {
      OASISKV_ASSIGN_OR_RETURN(
          memory, cuda::PinnedBuffer::Create(table_items * sizeof(uint64_t), "a frame table"));
    }
    uint64_t* const table = memory.As<uint64_t>();
    std::fill_n(table, table_items, 0);
    HostFrames& units = c_.pool.Units(geometry_.layer_entries_bytes());
    OASISKV_RETURN_IF_ERROR(Reserve(&units, (uint64_t{complete_} + decoded_) * geometry_.layers));
    made_->remote_table = table;
    made_->remote_units = &units;
    for (uint32_t l = 0; l < geometry_.layers; ++l) {
      uint64_t* const of_layer = table + uint64_t{l} * c_.shape.max_blocks;
      for (uint32_t b = 0; b < decoded_; ++b) {
        of_layer[complete_ + b] = reinterpret_cast<uint64_t>(TakeUnit(&units));
      }
    }
    OASISKV_RETURN_IF_ERROR(FetchUnion(table, &units));
    std::vector<gpu::HeadSource> sources(geometry_.kv_heads);
    for (uint32_t h = 0; h < geometry_.kv_heads; ++h) {
      sources[h] = {.frames = table,
                    .frames_layer_stride = c_.shape.max_blocks,
                    .entry_offset = uint64_t{h} * geometry_.entry_bytes()};
    }
    return UploadSources(sources);
  }

  // Every block that some head of a layer begins with, all heads.
  absl::Status FetchUnion(uint64_t* table, HostFrames* units) {
    std::deque<std::unique_ptr<PendingFetch>> in_flight;
    std::vector<EntryRead> reads;
    for (uint32_t l = 0; l < geometry_.layers; ++l) {
      const auto first = maps_.begin() + static_cast<ptrdiff_t>(l * heads_resident());
      std::set<int32_t> blocks(first, first + static_cast<ptrdiff_t>(heads_resident()));
      blocks.erase(kNoBlock);
      if (blocks.empty()) continue;
      reads.clear();
      for (int32_t block : blocks) {
        std::byte* const unit = TakeUnit(units);
        table[uint64_t{l} * c_.shape.max_blocks + static_cast<uint32_t>(block)] =
            reinterpret_cast<uint64_t>(unit);
        ReadBlock(static_cast<uint32_t>(block), l, unit, &reads);
      }
      made_->admission_bytes += reads.size() * uint64_t{geometry_.entry_bytes()};
      OASISKV_RETURN_IF_ERROR(Start(reads, &in_flight));
      if (in_flight.size() >= kLayersInFlight) OASISKV_RETURN_IF_ERROR(FinishOne(&in_flight));
    }
    while (!in_flight.empty()) OASISKV_RETURN_IF_ERROR(FinishOne(&in_flight));
    return absl::OkStatus();
  }

  void ReadBlock(uint32_t block, uint32_t layer, std::byte* into, std::vector<EntryRead>* reads) {
    for (uint32_t h = 0; h < geometry_.kv_heads; ++h) {
      reads->push_back({BlockIndex(block), LayerIndex(layer), HeadIndex(h),
                        into + uint64_t{h} * geometry_.entry_bytes()});
    }
  }
  absl::Status Start(const std::vector<EntryRead>& reads,
                     std::deque<std::unique_ptr<PendingFetch>>* in_flight) {
    in_flight->push_back(made_->source->Fetch(reads, AdmissionDeadline(c_.options.base)));
    if (in_flight->back() != nullptr) return absl::OkStatus();
    in_flight->pop_back();
    return MakeError(ErrorCode::kInternal, "the source began no read");
  }
  static absl::Status FinishOne(std::deque<std::unique_ptr<PendingFetch>>* in_flight) {
    const absl::Status status = in_flight->front()->Wait();
    in_flight->pop_front();
    return status.ok() ? status : Annotate(status, "fetching the first blocks");
  }

  // The gather kernel brings the residents, from wherever they lie.
  absl::Status FillPages() {
    std::vector<gpu::PlanItem> items;
    std::vector<uint32_t> counts(geometry_.layers, 0), firsts(geometry_.layers, 0);
    for (uint32_t l = 0; l < geometry_.layers; ++l) {
      firsts[l] = static_cast<uint32_t>(items.size());
      for (uint32_t h = 0; h < geometry_.kv_heads; ++h) {
        for (uint32_t p = 0; p < c_.shape.resident; ++p) {
          const int32_t block = maps_[l * heads_resident() + h * c_.shape.resident + p];
          if (block == kNoBlock) continue;
          items.push_back({.slot = static_cast<uint16_t>(slot_),
                           .head = static_cast<uint16_t>(h),
                           .page = static_cast<uint16_t>(p),
                           .flags = 0,
                           .block = block,
                           .row = 0});
        }
      }
      counts[l] = static_cast<uint32_t>(items.size()) - firsts[l];
    }
    if (!made_->remote) {
      made_->admission_bytes += items.size() * uint64_t{geometry_.entry_bytes()};
    }
    auto* const device_items = c_.pool.plan.As<gpu::PlanItem>();
    auto* const device_counts =
        reinterpret_cast<uint32_t*>(device_items + uint64_t{geometry_.layers} * heads_resident());
    OASISKV_RETURN_IF_ERROR(Upload(device_items, items.data(), items.size()));
    OASISKV_RETURN_IF_ERROR(Upload(device_counts, counts.data(), counts.size()));
    *c_.pool.error = gpu::ErrorWord();
    const gpu::GatherOptions options{.ctas = kAdmissionCtas, .threads = c_.options.gather_threads};
    for (uint32_t l = 0; l < geometry_.layers; ++l) {
      const gpu::LayerMemory& layer = c_.memory.layers[l];
      const gpu::Plan plan{
          .count = device_counts + l, .items = device_items + firsts[l], .capacity = counts[l]};
      if (counts[l] > 0) {
        OASISKV_RETURN_IF_ERROR(Launched("Gather", LayerIndex(l),
                                         gpu::Gather(c_.shape, l, layer, plan, c_.memory.sources,
                                                     options, c_.pool.error, c_.stream)));
      }
      OASISKV_RETURN_IF_ERROR(Upload(layer.map + slot_ * heads_resident(),
                                     &maps_[l * heads_resident()], heads_resident()));
    }
    return absl::OkStatus();
  }

  absl::Status FillLocalBlock() {
    if (local_tokens_ == 0) return absl::OkStatus();
    HostFrames& units = c_.pool.Units(geometry_.layer_entries_bytes());
    OASISKV_RETURN_IF_ERROR(units.Reserve(geometry_.layers));
    std::vector<std::byte*> taken;
    const absl::Status status = CopyLocalBlock(&units, &taken);
    // Copies out of pinned memory may still be under way.
    const cudaError_t over = cudaStreamSynchronize(c_.stream);
    for (std::byte* unit : taken) units.Give(unit);
    units.Release(geometry_.layers);
    OASISKV_RETURN_IF_ERROR(status);
    return cuda::ToStatus(over, "cudaStreamSynchronize");
  }

  absl::Status CopyLocalBlock(HostFrames* units, std::vector<std::byte*>* taken) {
    std::vector<EntryRead> reads;
    for (uint32_t l = 0; l < geometry_.layers; ++l) {
      taken->push_back(units->Take());
      ReadBlock(complete_, l, taken->back(), &reads);
    }
    made_->admission_bytes += reads.size() * uint64_t{geometry_.entry_bytes()};
    std::deque<std::unique_ptr<PendingFetch>> in_flight;
    OASISKV_RETURN_IF_ERROR(Start(reads, &in_flight));
    OASISKV_RETURN_IF_ERROR(FinishOne(&in_flight));
    const uint64_t key = geometry_.key_bytes();
    for (uint32_t l = 0; l < geometry_.layers; ++l) {
      const gpu::Pages& pages = c_.memory.layers[l].pages;
      const int64_t index = int64_t{slot_} * (c_.shape.resident + 1) + c_.shape.resident;
      int32_t physical = static_cast<int32_t>(index);
      if (pages.table != nullptr) {
        OASISKV_CUDA_RETURN(cudaMemcpyAsync(&physical, pages.table + index, sizeof(physical),
                                            cudaMemcpyDeviceToHost, c_.stream));
        OASISKV_CUDA_RETURN(cudaStreamSynchronize(c_.stream));
      }
      for (uint32_t h = 0; h < geometry_.kv_heads; ++h) {
        const int64_t offset = physical * pages.page_stride + h * pages.head_stride;
        const std::byte* from = (*taken)[l] + uint64_t{h} * geometry_.entry_bytes();
        OASISKV_CUDA_RETURN(cudaMemcpy2DAsync(pages.k + offset, pages.token_stride, from, key, key,
                                              local_tokens_, cudaMemcpyHostToDevice, c_.stream));
        if (c_.shape.latent) continue;
        from += geometry_.half_entry_bytes();
        OASISKV_CUDA_RETURN(cudaMemcpy2DAsync(pages.v + offset, pages.token_stride, from, key, key,
                                              local_tokens_, cudaMemcpyHostToDevice, c_.stream));
      }
    }
    return absl::OkStatus();
  }

  // The bytes have arrived: did the grant still hold?
  absl::Status CheckArrival() {
    for (size_t p = 0; p < parts_.size(); ++p) {
      const LocalFrames& memory = parts_[p].memory;
      if (memory.grant_word == nullptr) continue;
      const uint64_t word = __atomic_load_n(memory.grant_word, __ATOMIC_ACQUIRE);
      if (word == memory.epoch) continue;
      const absl::Status health = made_->source->Health();
      return health.ok() ? MakeError(ErrorCode::kStale,
                                     absl::StrFormat("part %d: the grant was revoked while its "
                                                     "first blocks were read; attach again",
                                                     p))
                         : health;
    }
    if (c_.pool.error->code == 0) return absl::OkStatus();
    return MakeError(
        ErrorCode::kInternal,
        absl::StrFormat("filling the first pages: device error %d at layer %d, block "
                        "%d",
                        c_.pool.error->code, c_.pool.error->layer, c_.pool.error->detail));
  }

  const AdmissionContext& c_;
  const Geometry& geometry_;
  const uint32_t slot_;
  std::unique_ptr<GpuSlot> made_;
  const uint32_t complete_;
  const uint32_t local_tokens_;
  uint32_t decoded_ = 0;
  std::vector<int32_t> maps_;  // [layer][head][K]
  std::vector<LocalPart> parts_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GpuSlot>> AdmitToSlot(const AdmissionContext& context,
                                                     std::shared_ptr<EntrySource> source,
                                                     uint32_t slot) {
  Admitter admitter(context, std::move(source), slot);
  if (const absl::Status status = admitter.Run(); !status.ok()) {
    // Nothing may be under way when the memory goes.
    OASISKV_CUDA_RETURN(cudaStreamSynchronize(context.stream));
    OASISKV_RETURN_IF_ERROR(ForgetSlot(context, slot));
    return status;
  }
  std::unique_ptr<GpuSlot> made = admitter.Take();
  auto& kept = context.pool.registrations;
  for (const auto& registration : made->registrations) {
    if (std::find(kept.begin(), kept.end(), registration) == kept.end()) {
      kept.push_back(registration);
    }
  }
  // Mappings that no request reads any more (of a daemon that is gone, say) are let go of now;
  // until then they stay, because pinning is slow.
  std::erase_if(kept, [](const auto& registration) { return registration.use_count() == 1; });
  return made;
}

}  // namespace oasiskv
