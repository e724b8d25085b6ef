#include "tools/bench/step/ceilings.h"

#include <algorithm>
#include <functional>
#include <random>
#include <vector>

#include "client/working_set/cuda/host/launch.h"
#include "client/working_set/cuda/kernels/kernels.h"
#include "common/cuda/handles.h"
#include "common/cuda/status.h"
#include "common/status_macros.h"
#include "tools/bench/rig/device.h"
#include "tools/bench/rig/device_layer.h"
#include "tools/bench/rig/hbm_reader.h"
#include "tools/bench/rig/timing.h"
#include "tools/bench/step/layer_rig.h"

namespace oasiskv::bench::step {
namespace {

constexpr int kRounds = 5;

// Median seconds of `enqueue`, after one that does not count.
absl::StatusOr<double> MedianSeconds(cudaStream_t stream,
                                     const std::function<absl::Status()>& enqueue) {
  OASISKV_ASSIGN_OR_RETURN(
      std::vector<double> seconds,
      TimeRepeats(stream, /*warmups=*/1, kRounds, [&](uint32_t) { return enqueue(); }));
  return Quantile(seconds, 0.5);
}

// A layer of a working set that only the gather kernel sees: every item of its plan brings another
// random entry of the pool.
class GatherRig {
 public:
  static absl::StatusOr<GatherRig> Create(const Model& model, const HostPool& pool,
                                          const GatherGrid& grid);
  absl::Status Enqueue(cudaStream_t stream) {
    gpu::Plan plan{.count = count_.data(), .groups = groups_.data(), .capacity = kItems};
    plan.items = items_.data() + uint64_t{turn_++ % kPlans} * kItems;
    return Launched("gather", gpu::Gather(layer_.shape, 0, layer_.memory, plan, layer_.sources,
                                          grid_, &layer_.error(), stream));
  }
  uint64_t bytes() const { return uint64_t{kItems} * layer_.shape.entry_bytes; }

 private:
  static constexpr uint32_t kSlots = 16, kResident = 128, kItems = 8192, kPlans = 8;

  DeviceLayer layer_;
  gpu::GatherOptions grid_;
  size_t turn_ = 0;
  DeviceArray<uint64_t> frames_;
  DeviceArray<uint32_t> count_;
  DeviceArray<gpu::PlanItem> items_;
  DeviceArray<gpu::PlanGroup> groups_;
};

absl::StatusOr<GatherRig> GatherRig::Create(const Model& model, const HostPool& pool,
                                            const GatherGrid& grid) {
  GatherRig rig;
  gpu::Shape s = OneLayer(model);
  s.group = s.summary_bytes = 0;  // nothing is scored
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
  OASISKV_ASSIGN_OR_RETURN(rig.frames_, DeviceArray<uint64_t>::Of(frames));
  OASISKV_ASSIGN_OR_RETURN(rig.layer_, DeviceLayer::Create({.shape = s}));
  std::vector<gpu::HeadSource> sources(uint64_t{kSlots} * s.kv_heads);
  for (uint32_t i = 0; i < sources.size(); ++i) {
    sources[i].frames = rig.frames_.data();
    sources[i].entry_offset = uint64_t{i % s.kv_heads} * s.entry_bytes;
  }
  OASISKV_RETURN_IF_ERROR(Upload(sources, rig.layer_.sources));

  // Each plan names every page of some (slot, head) pairs once.
  const uint32_t pairs = kSlots * s.kv_heads, groups = std::min(kItems / kResident, pairs);
  std::mt19937 random(7);
  std::uniform_int_distribution<int32_t> any(0, static_cast<int32_t>(frames.size()) - 1);
  std::vector<gpu::PlanItem> items;
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
  OASISKV_ASSIGN_OR_RETURN(rig.items_, DeviceArray<gpu::PlanItem>::Of(items));
  OASISKV_ASSIGN_OR_RETURN(rig.groups_, DeviceArray<gpu::PlanGroup>::Of(group_list));
  OASISKV_ASSIGN_OR_RETURN(rig.count_, DeviceArray<uint32_t>::Of({kItems}));
  return rig;
}

}  // namespace

absl::Status MeasureHbm(std::span<const std::byte> memory, cudaStream_t stream, Ceilings& found) {
  OASISKV_ASSIGN_OR_RETURN(const uint32_t sms, Multiprocessors());
  OASISKV_ASSIGN_OR_RETURN(const auto sink, DeviceArray<uint32_t>::Zeroed(1));
  const uint64_t bytes = memory.size() / 16 * 16;
  double best = 0;
  for (const uint32_t per_sm : {2u, 4u, 8u}) {
    OASISKV_ASSIGN_OR_RETURN(
        const double seconds, MedianSeconds(stream, [&] {
          return Launched("reading HBM", ReadHbm(memory.data(), bytes, sink.data(), per_sm * sms,
                                                 ReadOrder::kSideBySide, stream));
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
  OASISKV_ASSIGN_OR_RETURN(const auto sink, DeviceArray<uint32_t>::Zeroed(1));
  const uint64_t bytes = std::min<uint64_t>(memory.size(), uint64_t{1} << 30) / 16 * 16;
  const double reading = static_cast<double>(bytes) / found.hbm_read;
  const int readings = std::max(8, static_cast<int>(2 * alone / reading));
  std::vector<double> rates, read_rates;
  for (int round = 0; round < kRounds; ++round) {
    OASISKV_CUDA_RETURN(cudaDeviceSynchronize());
    OASISKV_ASSIGN_OR_RETURN(const cuda::Event read_begin, Mark(stream));
    for (int i = 0; i < readings; ++i) {
      OASISKV_RETURN_IF_ERROR(Launched(
          "reading HBM",
          ReadHbm(memory.data(), bytes, sink.data(), 8 * sms, ReadOrder::kSideBySide, stream)));
    }
    OASISKV_ASSIGN_OR_RETURN(const cuda::Event read_end, Mark(stream));
    OASISKV_ASSIGN_OR_RETURN(const cuda::Event begin, Mark(first.get()));
    OASISKV_RETURN_IF_ERROR(gathers(first.get()));
    OASISKV_ASSIGN_OR_RETURN(const cuda::Event end, Mark(first.get()));
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
