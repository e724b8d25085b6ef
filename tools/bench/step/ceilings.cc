#include "tools/bench/step/ceilings.h"

#include <algorithm>
#include <functional>
#include <random>
#include <vector>

#include "client/working_set/cuda/kernels/kernels.h"
#include "common/cuda/handles.h"
#include "common/cuda/status.h"
#include "common/status_macros.h"
#include "tools/bench/step/layer_rig.h"
#include "tools/bench/step/small_kernels.h"

namespace oasiskv::bench::step {
namespace {

constexpr int kRounds = 5;

// Median seconds of `enqueue`, after one that does not count.
absl::StatusOr<double> MedianSeconds(cudaStream_t stream,
                                     const std::function<absl::Status()>& enqueue) {
  OASISKV_ASSIGN_OR_RETURN(TimedEvent begin, TimedEvent::Create());
  OASISKV_ASSIGN_OR_RETURN(TimedEvent end, TimedEvent::Create());
  std::vector<double> seconds;
  for (int round = 0; round <= kRounds; ++round) {
    OASISKV_CUDA_RETURN(cudaEventRecord(begin.get(), stream));
    OASISKV_RETURN_IF_ERROR(enqueue());
    OASISKV_CUDA_RETURN(cudaEventRecord(end.get(), stream));
    OASISKV_CUDA_RETURN(cudaEventSynchronize(end.get()));
    OASISKV_ASSIGN_OR_RETURN(const double one, SecondsBetween(begin, end));
    if (round > 0) seconds.push_back(one);
  }
  return Quantile(seconds, 0.5);
}

absl::StatusOr<uint32_t> Multiprocessors() {
  int device = 0, count = 0;
  OASISKV_CUDA_RETURN(cudaGetDevice(&device));
  OASISKV_CUDA_RETURN(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return static_cast<uint32_t>(count);
}

// A layer of a working set that only the gather kernel sees: every item of its plan brings another
// random entry of the pool.
class GatherRig {
 public:
  static absl::StatusOr<GatherRig> Create(const Model& model, const HostPool& pool,
                                          const GatherGrid& grid);
  absl::Status Enqueue(cudaStream_t stream) {
    const gpu::Plan& plan = plans_[turn_++ % plans_.size()];
    return Launched(gpu::Gather(shape_, 0, memory_, plan, sources_.As<gpu::HeadSource>(), grid_,
                                errors_.As<gpu::ErrorWord>(), stream),
                    "gather");
  }
  uint64_t bytes() const { return uint64_t{kItems} * shape_.entry_bytes; }

 private:
  static constexpr uint32_t kSlots = 16, kResident = 128, kItems = 8192, kPlans = 8;

  gpu::Shape shape_;
  gpu::LayerMemory memory_;
  gpu::GatherOptions grid_;
  std::vector<gpu::Plan> plans_;
  size_t turn_ = 0;
  cuda::DeviceBuffer pages_, books_, sources_, frames_, items_;
  cuda::PinnedBuffer errors_;
};

template <typename T>
absl::StatusOr<cuda::DeviceBuffer> Upload(const std::vector<T>& items) {
  OASISKV_ASSIGN_OR_RETURN(cuda::DeviceBuffer buffer,
                           cuda::DeviceBuffer::Create(items.size() * sizeof(T), "the gather rig"));
  OASISKV_CUDA_RETURN(
      cudaMemcpy(buffer.data(), items.data(), items.size() * sizeof(T), cudaMemcpyHostToDevice));
  return buffer;
}

absl::StatusOr<GatherRig> GatherRig::Create(const Model& model, const HostPool& pool,
                                            const GatherGrid& grid) {
  GatherRig rig;
  gpu::Shape& s = rig.shape_;
  s = OneLayer(model);
  s.resident = kResident;
  s.slots = kSlots;
  s.cap = kResident;
  rig.grid_.ctas = grid.ctas;
  rig.grid_.threads = grid.threads;
  rig.grid_.loads = grid.loads;

  // Blocks of the rig's one layer are all (layer, block) of all sequences of the pool.
  const Geometry& g = pool.geometry();
  std::vector<uint64_t> frames;
  for (uint32_t sequence = 0; sequence < pool.sequences(); ++sequence) {
    for (uint32_t b = 0; b < pool.blocks(); ++b) {
      for (uint32_t layer = 0; layer < g.layers; ++layer) {
        frames.push_back(reinterpret_cast<uint64_t>(pool.Frame(sequence, b)) +
                         uint64_t{layer} * g.layer_entries_bytes());
      }
    }
  }
  s.max_blocks = static_cast<uint32_t>(frames.size());
  OASISKV_ASSIGN_OR_RETURN(rig.frames_, Upload(frames));
  std::vector<gpu::HeadSource> sources(uint64_t{kSlots} * s.kv_heads);
  for (uint32_t i = 0; i < sources.size(); ++i) {
    sources[i].frames = rig.frames_.As<uint64_t>();
    sources[i].entry_offset = uint64_t{i % s.kv_heads} * s.entry_bytes;
  }
  OASISKV_ASSIGN_OR_RETURN(rig.sources_, Upload(sources));

  const uint64_t page = uint64_t{s.kv_heads} * s.entry_bytes;
  OASISKV_ASSIGN_OR_RETURN(
      rig.pages_, cuda::DeviceBuffer::Create(kSlots * (kResident + 1) * page, "the gather rig"));
  rig.memory_.pages.k = rig.pages_.data();
  rig.memory_.pages.v = s.latent ? nullptr : rig.pages_.data() + s.entry_bytes / 2;
  rig.memory_.pages.page_stride = static_cast<int64_t>(page);
  rig.memory_.pages.head_stride = s.entry_bytes;
  rig.memory_.pages.token_stride = s.key_bytes;
  const uint64_t pairs = uint64_t{kSlots} * s.kv_heads;
  const uint64_t map_bytes = pairs * kResident * sizeof(int32_t);
  const uint64_t stamp_bytes = pairs * kResident * sizeof(uint64_t);
  OASISKV_ASSIGN_OR_RETURN(
      rig.books_,
      cuda::DeviceBuffer::Create(stamp_bytes + 2 * map_bytes + kSlots * sizeof(gpu::SlotState),
                                 "the gather rig"));
  rig.memory_.stamps = rig.books_.As<uint64_t>();
  rig.memory_.map = reinterpret_cast<int32_t*>(rig.books_.data() + stamp_bytes);
  rig.memory_.predicted = reinterpret_cast<int32_t*>(rig.books_.data() + stamp_bytes + map_bytes);
  rig.memory_.state =
      reinterpret_cast<gpu::SlotState*>(rig.books_.data() + stamp_bytes + 2 * map_bytes);
  OASISKV_ASSIGN_OR_RETURN(rig.errors_,
                           cuda::PinnedBuffer::Create(sizeof(gpu::ErrorWord), "the gather rig"));

  // Each plan names every page of some (slot, head) pairs once.
  const uint32_t groups = std::min<uint32_t>(kItems / kResident, static_cast<uint32_t>(pairs));
  std::mt19937 random(7);
  std::uniform_int_distribution<int32_t> any(0, static_cast<int32_t>(frames.size()) - 1);
  std::vector<gpu::PlanItem> items;
  std::vector<uint32_t> counts(4, kItems);
  std::vector<gpu::PlanGroup> group_list(pairs);
  for (uint32_t plan = 0; plan < kPlans; ++plan) {
    for (uint32_t i = 0; i < kItems; ++i) {
      const uint32_t pair = i / kResident % groups;
      gpu::PlanItem item;
      item.slot = static_cast<uint16_t>(pair / s.kv_heads);
      item.head = static_cast<uint16_t>(pair % s.kv_heads);
      item.page = static_cast<uint16_t>(i % kResident);
      item.block = any(random);
      item.row = item.slot;
      items.push_back(item);
    }
  }
  for (uint32_t pair = 0; pair < groups; ++pair) group_list[pair] = {pair * kResident, kResident};
  const uint64_t item_bytes = items.size() * sizeof(gpu::PlanItem);
  const uint64_t group_bytes = group_list.size() * sizeof(gpu::PlanGroup);
  OASISKV_ASSIGN_OR_RETURN(
      rig.items_, cuda::DeviceBuffer::Create(item_bytes + group_bytes + 16, "the gather rig"));
  std::byte* groups_at = rig.items_.data() + item_bytes;
  std::byte* count_at = groups_at + group_bytes;
  OASISKV_CUDA_RETURN(
      cudaMemcpy(rig.items_.data(), items.data(), item_bytes, cudaMemcpyHostToDevice));
  OASISKV_CUDA_RETURN(
      cudaMemcpy(groups_at, group_list.data(), group_bytes, cudaMemcpyHostToDevice));
  OASISKV_CUDA_RETURN(cudaMemcpy(count_at, counts.data(), 16, cudaMemcpyHostToDevice));
  for (uint32_t plan = 0; plan < kPlans; ++plan) {
    gpu::Plan p;
    p.count = reinterpret_cast<uint32_t*>(count_at);
    p.items = rig.items_.As<gpu::PlanItem>() + uint64_t{plan} * kItems;
    p.groups = reinterpret_cast<gpu::PlanGroup*>(groups_at);
    p.capacity = kItems;
    rig.plans_.push_back(p);
  }
  // The uploads went by the legacy stream, for which other streams do not wait.
  OASISKV_CUDA_RETURN(cudaStreamSynchronize(cudaStreamLegacy));
  return rig;
}

}  // namespace

absl::Status MeasureHbm(std::span<const std::byte> memory, cudaStream_t stream, Ceilings& found) {
  OASISKV_ASSIGN_OR_RETURN(const uint32_t sms, Multiprocessors());
  OASISKV_ASSIGN_OR_RETURN(cuda::DeviceBuffer sink, cuda::DeviceBuffer::Create(16, "a sink"));
  const uint64_t bytes = memory.size() / 16 * 16;
  double best = 0;
  for (const uint32_t per_sm : {2u, 4u, 8u}) {
    OASISKV_ASSIGN_OR_RETURN(
        const double seconds, MedianSeconds(stream, [&] {
          return Launched(ReadAll(memory.data(), bytes, sink.As<uint32_t>(), per_sm * sms, stream),
                          "reading HBM");
        }));
    best = std::max(best, static_cast<double>(bytes) / seconds);
  }
  found.hbm_read = best;
  const uint64_t copied = std::min<uint64_t>(bytes, uint64_t{4} << 30);
  OASISKV_ASSIGN_OR_RETURN(cuda::DeviceBuffer to, cuda::DeviceBuffer::Create(copied, "a copy"));
  OASISKV_ASSIGN_OR_RETURN(const double seconds, MedianSeconds(stream, [&]() -> absl::Status {
                             OASISKV_CUDA_RETURN(cudaMemcpyAsync(to.data(), memory.data(), copied,
                                                                 cudaMemcpyDeviceToDevice, stream));
                             return absl::OkStatus();
                           }));
  found.hbm_copy = 2 * static_cast<double>(copied) / seconds;
  return absl::OkStatus();
}

absl::Status MeasureLink(const Model& model, const HostPool& pool, const GatherGrid& grid,
                         std::span<const std::byte> memory, cudaStream_t stream, Ceilings& found) {
  const uint64_t copied = std::min<uint64_t>(pool.bytes(), uint64_t{1} << 30);
  {
    OASISKV_ASSIGN_OR_RETURN(cuda::DeviceBuffer to, cuda::DeviceBuffer::Create(copied, "a copy"));
    OASISKV_ASSIGN_OR_RETURN(
        const double seconds, MedianSeconds(stream, [&]() -> absl::Status {
          OASISKV_CUDA_RETURN(cudaMemcpyAsync(to.data(), pool.memory().data(), copied,
                                              cudaMemcpyHostToDevice, stream));
          return absl::OkStatus();
        }));
    found.copy_engine = static_cast<double>(copied) / seconds;
  }
  OASISKV_ASSIGN_OR_RETURN(GatherRig rig, GatherRig::Create(model, pool, grid));
  constexpr int kLaunches = 8;
  const auto gathers = [&](cudaStream_t on) -> absl::Status {
    for (int i = 0; i < kLaunches; ++i) OASISKV_RETURN_IF_ERROR(rig.Enqueue(on));
    return absl::OkStatus();
  };
  OASISKV_ASSIGN_OR_RETURN(const double alone,
                           MedianSeconds(stream, [&] { return gathers(stream); }));
  const double moved = static_cast<double>(rig.bytes()) * kLaunches;
  found.gather_alone = moved / alone;

  // Beside: readings are enqueued for about twice as long as the gather takes, on a stream of lower
  // priority.
  int least = 0, greatest = 0;
  OASISKV_CUDA_RETURN(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  OASISKV_ASSIGN_OR_RETURN(cuda::Stream first, cuda::Stream::Create(greatest));
  OASISKV_ASSIGN_OR_RETURN(const uint32_t sms, Multiprocessors());
  OASISKV_ASSIGN_OR_RETURN(cuda::DeviceBuffer sink, cuda::DeviceBuffer::Create(16, "a sink"));
  const uint64_t bytes = std::min<uint64_t>(memory.size(), uint64_t{1} << 30) / 16 * 16;
  const double reading = static_cast<double>(bytes) / found.hbm_read;
  const int readings = std::max(8, static_cast<int>(2 * alone / reading));
  OASISKV_ASSIGN_OR_RETURN(TimedEvent read_begin, TimedEvent::Create());
  OASISKV_ASSIGN_OR_RETURN(TimedEvent read_end, TimedEvent::Create());
  OASISKV_ASSIGN_OR_RETURN(TimedEvent begin, TimedEvent::Create());
  OASISKV_ASSIGN_OR_RETURN(TimedEvent end, TimedEvent::Create());
  std::vector<double> rates, read_rates;
  for (int round = 0; round < kRounds; ++round) {
    OASISKV_CUDA_RETURN(cudaDeviceSynchronize());
    OASISKV_CUDA_RETURN(cudaEventRecord(read_begin.get(), stream));
    for (int i = 0; i < readings; ++i) {
      OASISKV_RETURN_IF_ERROR(Launched(
          ReadAll(memory.data(), bytes, sink.As<uint32_t>(), 8 * sms, stream), "reading HBM"));
    }
    OASISKV_CUDA_RETURN(cudaEventRecord(read_end.get(), stream));
    OASISKV_CUDA_RETURN(cudaEventRecord(begin.get(), first.get()));
    OASISKV_RETURN_IF_ERROR(gathers(first.get()));
    OASISKV_CUDA_RETURN(cudaEventRecord(end.get(), first.get()));
    OASISKV_CUDA_RETURN(cudaDeviceSynchronize());
    OASISKV_ASSIGN_OR_RETURN(const double seconds, SecondsBetween(begin, end));
    OASISKV_ASSIGN_OR_RETURN(const double read_seconds, SecondsBetween(read_begin, read_end));
    rates.push_back(moved / seconds);
    // Reading went on alone after the gather had ended.
    const double beside =
        static_cast<double>(bytes) * readings - (read_seconds - seconds) * found.hbm_read;
    read_rates.push_back(beside / std::min(seconds, read_seconds));
  }
  found.gather_beside = Quantile(rates, 0.5);
  found.hbm_read_beside = Quantile(read_rates, 0.5);
  return absl::OkStatus();
}

}  // namespace oasiskv::bench::step
