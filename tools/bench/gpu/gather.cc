// gather: random entries over a large footprint of registered host memory.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/working_set/cuda/kernels.h"
#include "common/cuda/host_registration.h"
#include "common/cuda/status.h"
#include "common/mapped_memory.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"
#include "tools/bench/gpu/commands.h"
#include "tools/bench/gpu/device_array.h"
#include "tools/bench/gpu/event_timer.h"
#include "tools/bench/gpu/hbm_reader.h"
#include "tools/bench/samples.h"

ABSL_FLAG(std::vector<std::string>, gather_entry_bytes,
          std::vector<std::string>({"4096", "8192", "16384", "65536"}),
          "gather: sizes of an entry, multiples of 512.");
ABSL_FLAG(std::vector<std::string>, gather_grids,
          std::vector<std::string>({"1x1024x4", "2x1024x4", "4x1024x4", "8x1024x4", "4x1024x8"}),
          "gather: CTAs x threads x loads in flight of a thread.");
ABSL_FLAG(std::vector<std::string>, gather_items, std::vector<std::string>({"65536"}),
          "gather: entries of a launch, of 8 KiB; for other sizes as many bytes.");
ABSL_FLAG(uint64_t, gather_footprint, uint64_t{8} << 30,
          "gather: bytes of host memory that entries are drawn from.");
ABSL_FLAG(int, gather_rounds, 15, "gather: launches a figure is the median of.");
ABSL_FLAG(bool, gather_beside, true, "gather: also beside a kernel that is bound by HBM.");

namespace oasiskv::bench {
namespace {

constexpr uint32_t kHeads = 8, kResident = 128;
constexpr uint32_t kPlans = 4;  // each another set of random entries, used in turn
constexpr uint64_t kHbmBytes = uint64_t{8} << 30;
constexpr uint64_t kLaunchEntryBytes = 8192;
constexpr uint64_t kBesideBytes = uint64_t{128} << 20;  // launches long enough to overlap

struct Grid {
  std::string name;
  gpu::GatherOptions options;
};

absl::StatusOr<std::vector<uint64_t>> Numbers(const std::vector<std::string>& texts) {
  std::vector<uint64_t> numbers;
  for (const std::string& text : texts) {
    if (!absl::SimpleAtoi(text, &numbers.emplace_back()) || numbers.back() == 0) {
      return MakeError(ErrorCode::kInvalidArgument,
                       absl::StrCat("'", text, "' is no positive number"));
    }
  }
  return numbers;
}

absl::StatusOr<std::vector<Grid>> Grids() {
  std::vector<Grid> grids;
  for (const std::string& text : absl::GetFlag(FLAGS_gather_grids)) {
    OASISKV_ASSIGN_OR_RETURN(std::vector<uint64_t> n,
                             Numbers(std::vector<std::string>(absl::StrSplit(text, 'x'))));
    if (n.size() != 3) {
      return MakeError(ErrorCode::kInvalidArgument,
                       absl::StrCat("--gather_grids: '", text,
                                    "' is not CTAs x threads x loads, as in 4x1024x4"));
    }
    grids.push_back({text,
                     {.ctas = static_cast<uint32_t>(n[0]),
                      .threads = static_cast<uint32_t>(n[1]),
                      .loads = static_cast<uint32_t>(n[2])}});
  }
  return grids;
}

absl::Status Launched(const char* error) {
  return error == nullptr ? absl::OkStatus() : MakeError(ErrorCode::kInternal, error);
}

uint64_t WordAt(uint64_t index) { return index * 0x9E3779B97F4A7C15u ^ (index >> 7); }

// Thread contract: one thread. A memfd as the daemon's arena is one: normal pages, shared mapping.
struct HostMemory {
  static absl::StatusOr<std::unique_ptr<HostMemory>> Make(uint64_t bytes) {
    auto host = std::make_unique<HostMemory>();
    OASISKV_ASSIGN_OR_RETURN(UniqueFd fd, CreateMemfd("gather", bytes, PageKind::kNormal));
    auto mapping = std::make_shared<Mapping>();
    OASISKV_ASSIGN_OR_RETURN(*mapping, Mapping::Map(fd.get(), bytes, Protection::kReadWrite));
    host->data = mapping->data();
    host->bytes = bytes;
    std::vector<std::thread> threads;
    const uint64_t workers = std::max(1u, std::thread::hardware_concurrency());
    for (uint64_t w = 0; w < workers; ++w) {
      threads.emplace_back([&, w] {
        auto* const words = reinterpret_cast<uint64_t*>(host->data);
        const uint64_t n = bytes / sizeof(uint64_t);
        for (uint64_t i = n * w / workers; i < n * (w + 1) / workers; ++i) words[i] = WordAt(i);
      });
    }
    for (std::thread& thread : threads) thread.join();
    OASISKV_ASSIGN_OR_RETURN(
        host->registration,
        cuda::HostRegistration::Get(std::span<const std::byte>(host->data, bytes), mapping));
    return host;
  }
  std::byte* data = nullptr;
  uint64_t bytes = 0;
  std::shared_ptr<const cuda::HostRegistration> registration;
};

// Thread contract: one thread. Pages for the items of a launch, plans of random entries.
struct Target {
  static absl::StatusOr<std::unique_ptr<Target>> Make(const HostMemory& host, uint64_t entry_bytes,
                                                      uint32_t items) {
    auto t = std::make_unique<Target>();
    const uint32_t slots = (items + kHeads * kResident - 1) / (kHeads * kResident);
    t->items = items;
    t->shape.layers = 1;
    t->shape.kv_heads = kHeads;
    t->shape.head_dim = 128;
    t->shape.key_bytes = 256;
    t->shape.block_tokens = static_cast<uint32_t>(entry_bytes / 512);
    t->shape.entry_bytes = static_cast<uint32_t>(entry_bytes);
    t->shape.resident = kResident;
    t->shape.slots = slots;
    const uint64_t half = entry_bytes / 2, pages = uint64_t{slots} * (kResident + 1);
    // Heads of a page apart, K and V apart (HND): what FlashInfer and FlashAttention read.
    t->page_bytes = kHeads * half;
    OASISKV_ASSIGN_OR_RETURN(t->pool, DeviceArray<std::byte>::Zeroed(2 * pages * t->page_bytes));
    OASISKV_ASSIGN_OR_RETURN(t->map,
                             DeviceArray<int32_t>::Zeroed(size_t{slots} * kHeads * kResident));
    t->value_offset = pages * t->page_bytes;
    t->mem.pages = {.k = t->pool.data(),
                    .v = t->pool.data() + t->value_offset,
                    .page_stride = static_cast<int64_t>(t->page_bytes),
                    .head_stride = static_cast<int64_t>(half),
                    .token_stride = 256};
    t->mem.map = t->map.data();

    const uint64_t places = host.bytes / entry_bytes;
    std::vector<uint64_t> frames(places);
    for (uint64_t i = 0; i < places; ++i) {
      frames[i] = reinterpret_cast<uint64_t>(host.data + i * entry_bytes);
    }
    OASISKV_ASSIGN_OR_RETURN(t->frames, DeviceArray<uint64_t>::Of(frames));
    OASISKV_ASSIGN_OR_RETURN(t->sources,
                             DeviceArray<gpu::HeadSource>::Of(std::vector<gpu::HeadSource>(
                                 size_t{slots} * kHeads, {.frames = t->frames.data()})));
    std::mt19937_64 random(entry_bytes + items);
    std::vector<uint32_t> numbers(size_t{slots} * kHeads * kResident);
    for (uint32_t i = 0; i < numbers.size(); ++i) numbers[i] = i;
    for (uint32_t p = 0; p < kPlans; ++p) {
      std::vector<gpu::PlanItem>& list = t->plans_host[p];
      list.resize(items);
      std::shuffle(numbers.begin(), numbers.end(), random);
      for (uint32_t i = 0; i < items; ++i) {
        list[i].slot = static_cast<uint16_t>(numbers[i] / (kHeads * kResident));
        list[i].head = static_cast<uint16_t>(numbers[i] / kResident % kHeads);
        list[i].page = static_cast<uint16_t>(numbers[i] % kResident);
        list[i].block = static_cast<int32_t>(random() % places);
      }
      OASISKV_ASSIGN_OR_RETURN(t->plan_items[p], DeviceArray<gpu::PlanItem>::Of(list));
      OASISKV_ASSIGN_OR_RETURN(t->counts[p],
                               DeviceArray<uint32_t>::Of(std::vector<uint32_t>{items}));
    }
    OASISKV_ASSIGN_OR_RETURN(t->error, cuda::PinnedBuffer::Create(sizeof(gpu::ErrorWord), "error"));
    return t;
  }

  absl::Status Launch(uint32_t number, const gpu::GatherOptions& options, cudaStream_t stream) {
    const uint32_t p = number % kPlans;
    return Launched(
        gpu::Gather(shape, 0, mem,
                    {.count = counts[p].data(), .items = plan_items[p].data(), .capacity = items},
                    sources.data(), options, error.As<gpu::ErrorWord>(), stream));
  }

  // Some of the pages that plan 0 has filled, word by word.
  absl::Status Verify() {
    const uint64_t half = shape.entry_bytes / 2;
    std::vector<uint64_t> got(half / sizeof(uint64_t));
    for (size_t i = 0; i < plans_host[0].size();
         i += std::max<size_t>(1, plans_host[0].size() / 64)) {
      const gpu::PlanItem& item = plans_host[0][i];
      for (uint64_t value : {0, 1}) {
        const uint64_t page = uint64_t{item.slot} * (kResident + 1) + item.page;
        OASISKV_CUDA_RETURN(cudaMemcpy(
            got.data(), pool.data() + value * value_offset + page * page_bytes + item.head * half,
            half, cudaMemcpyDeviceToHost));
        const uint64_t first =
            (uint64_t(item.block) * shape.entry_bytes + value * half) / sizeof(uint64_t);
        for (size_t w = 0; w < got.size(); ++w) {
          if (got[w] == WordAt(first + w)) continue;
          return MakeError(ErrorCode::kInternal,
                           absl::StrFormat("item %d: a page does not hold its entry's bytes", i));
        }
      }
    }
    return absl::OkStatus();
  }

  double bytes() const { return static_cast<double>(items) * shape.entry_bytes; }

  gpu::Shape shape;
  gpu::LayerMemory mem;
  uint32_t items = 0;
  uint64_t page_bytes = 0, value_offset = 0;
  DeviceArray<std::byte> pool;
  DeviceArray<int32_t> map;
  DeviceArray<uint64_t> frames;
  DeviceArray<gpu::HeadSource> sources;
  std::vector<gpu::PlanItem> plans_host[kPlans];
  DeviceArray<gpu::PlanItem> plan_items[kPlans];
  DeviceArray<uint32_t> counts[kPlans];
  cuda::PinnedBuffer error;
};

// GB/s of `launch(i)`, each of `bytes`.
template <typename F>
absl::StatusOr<Spread> Rate(int rounds, double bytes, cudaStream_t stream, F launch) {
  std::vector<double> rates;
  for (int i = -2; i < rounds; ++i) {  // two to warm up
    OASISKV_ASSIGN_OR_RETURN(TimePoint start, TimePoint::Record(stream));
    OASISKV_RETURN_IF_ERROR(launch(static_cast<uint32_t>(i + 2)));
    OASISKV_ASSIGN_OR_RETURN(TimePoint end, TimePoint::Record(stream));
    OASISKV_CUDA_RETURN(cudaStreamSynchronize(stream));
    OASISKV_ASSIGN_OR_RETURN(double seconds, end.Since(start));
    if (i >= 0) rates.push_back(bytes / seconds * 1e-9);
  }
  return SpreadOf(std::move(rates));
}

// Launches one after another, as RunBeside has them: the rate of a busy GPU, not of a rested one.
absl::StatusOr<Spread> ReaderAlone(const std::byte* hbm, uint64_t* sink, cudaStream_t stream) {
  constexpr uint32_t kReads = 100, kWarm = 10;
  std::vector<TimePoint> points;
  for (uint32_t i = 0; i < kReads; ++i) {
    OASISKV_RETURN_IF_ERROR(Launched(ReadHbm(hbm, kHbmBytes, sink, stream)));
    OASISKV_ASSIGN_OR_RETURN(TimePoint point, TimePoint::Record(stream));
    points.push_back(std::move(point));
  }
  OASISKV_CUDA_RETURN(cudaStreamSynchronize(stream));
  std::vector<double> rates;
  for (uint32_t i = kWarm; i + 1 < kReads; ++i) {
    OASISKV_ASSIGN_OR_RETURN(double seconds, points[i + 1].Since(points[i]));
    rates.push_back(static_cast<double>(kHbmBytes) / seconds * 1e-9);
  }
  return SpreadOf(std::move(rates));
}

struct Beside {
  Spread gather, neighbour;
};

// Rates of those launches of either stream during all of which the other was busy.
absl::StatusOr<Beside> RunBeside(Target& target, const gpu::GatherOptions& options,
                                 const std::byte* hbm, uint64_t* sink, cudaStream_t high,
                                 cudaStream_t low) {
  constexpr uint32_t kGathers = 12, kReads = 110;
  std::vector<TimePoint> gathers, reads;
  OASISKV_ASSIGN_OR_RETURN(TimePoint start, TimePoint::Record(low));
  reads.push_back(std::move(start));
  for (uint32_t i = 0; i < kReads; ++i) {
    OASISKV_RETURN_IF_ERROR(Launched(ReadHbm(hbm, kHbmBytes, sink, low)));
    OASISKV_ASSIGN_OR_RETURN(TimePoint point, TimePoint::Record(low));
    reads.push_back(std::move(point));
    if (i == 3) OASISKV_CUDA_RETURN(cudaStreamWaitEvent(high, reads.back().get()));
  }
  for (uint32_t i = 0; i <= kGathers; ++i) {
    OASISKV_ASSIGN_OR_RETURN(TimePoint point, TimePoint::Record(high));
    gathers.push_back(std::move(point));
    if (i < kGathers) OASISKV_RETURN_IF_ERROR(target.Launch(i, options, high));
  }
  OASISKV_CUDA_RETURN(cudaDeviceSynchronize());
  const auto times =
      [&](const std::vector<TimePoint>& points) -> absl::StatusOr<std::vector<double>> {
    std::vector<double> seconds;
    for (const TimePoint& point : points) {
      OASISKV_ASSIGN_OR_RETURN(seconds.emplace_back(), point.Since(reads.front()));
    }
    return seconds;
  };
  OASISKV_ASSIGN_OR_RETURN(std::vector<double> g, times(gathers));
  OASISKV_ASSIGN_OR_RETURN(std::vector<double> r, times(reads));
  const auto overlapping = [](const std::vector<double>& mine, const std::vector<double>& other,
                              double bytes) {
    std::vector<double> rates;
    for (size_t i = 0; i + 1 < mine.size(); ++i) {
      if (mine[i] < other.front() || mine[i + 1] > other.back()) continue;
      rates.push_back(bytes / (mine[i + 1] - mine[i]) * 1e-9);
    }
    return SpreadOf(std::move(rates));
  };
  return Beside{.gather = overlapping(g, r, target.bytes()),
                .neighbour = overlapping(r, g, static_cast<double>(kHbmBytes))};
}

absl::Status RunGather() {
  OASISKV_ASSIGN_OR_RETURN(std::vector<uint64_t> sizes,
                           Numbers(absl::GetFlag(FLAGS_gather_entry_bytes)));
  OASISKV_ASSIGN_OR_RETURN(std::vector<uint64_t> launches,
                           Numbers(absl::GetFlag(FLAGS_gather_items)));
  OASISKV_ASSIGN_OR_RETURN(std::vector<Grid> grids, Grids());
  const int rounds = absl::GetFlag(FLAGS_gather_rounds);
  OASISKV_ASSIGN_OR_RETURN(std::unique_ptr<HostMemory> host,
                           HostMemory::Make(absl::GetFlag(FLAGS_gather_footprint)));
  OASISKV_ASSIGN_OR_RETURN(cuda::Stream low, cuda::Stream::Create(0));
  int least = 0, greatest = 0;
  OASISKV_CUDA_RETURN(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  OASISKV_ASSIGN_OR_RETURN(cuda::Stream high, cuda::Stream::Create(greatest));

  // Measured again after the gathers; the better of the two is the ceiling.
  const uint64_t contiguous = std::min<uint64_t>(host->bytes, uint64_t{512} << 20);
  OASISKV_ASSIGN_OR_RETURN(auto into, DeviceArray<std::byte>::Zeroed(contiguous));
  const auto copy_engine = [&] {
    return Rate(rounds, static_cast<double>(contiguous), low.get(),
                [&](uint32_t i) -> absl::Status {
                  const uint64_t at = i * contiguous % (host->bytes - contiguous + 1);
                  OASISKV_CUDA_RETURN(cudaMemcpyAsync(into.data(), host->data + at, contiguous,
                                                      cudaMemcpyHostToDevice, low.get()));
                  return absl::OkStatus();
                });
  };
  OASISKV_ASSIGN_OR_RETURN(const Spread before, copy_engine());
  Spread alone;
  DeviceArray<std::byte> hbm;
  OASISKV_ASSIGN_OR_RETURN(auto sink, DeviceArray<uint64_t>::Zeroed(1));
  if (absl::GetFlag(FLAGS_gather_beside)) {
    OASISKV_ASSIGN_OR_RETURN(hbm, DeviceArray<std::byte>::Zeroed(kHbmBytes));
    OASISKV_ASSIGN_OR_RETURN(alone, ReaderAlone(hbm.data(), sink.data(), low.get()));
    std::printf("HBM reader alone: %.0f +- %.0f GB/s\n", alone.median, alone.half_iqr);
  }
  struct Row {
    uint64_t entry, items;
    std::string grid;
    double us;
    Spread rate;
    std::optional<Beside> beside;
  };
  std::vector<Row> table;
  for (uint64_t size : sizes) {
    for (uint64_t count : launches) {
      const uint64_t items = std::max<uint64_t>(1, count * kLaunchEntryBytes / size);
      OASISKV_ASSIGN_OR_RETURN(std::unique_ptr<Target> target,
                               Target::Make(*host, size, static_cast<uint32_t>(items)));
      for (const Grid& grid : grids) {
        OASISKV_ASSIGN_OR_RETURN(Spread rate,
                                 Rate(rounds, target->bytes(), low.get(), [&](uint32_t i) {
                                   return target->Launch(i, grid.options, low.get());
                                 }));
        OASISKV_RETURN_IF_ERROR(target->Launch(0, grid.options, low.get()));
        OASISKV_CUDA_RETURN(cudaDeviceSynchronize());
        OASISKV_RETURN_IF_ERROR(target->Verify());
        Row& row = table.emplace_back(Row{.entry = size,
                                          .items = items,
                                          .grid = grid.name,
                                          .us = target->bytes() / rate.median * 1e-3,
                                          .rate = rate,
                                          .beside = std::nullopt});
        if (absl::GetFlag(FLAGS_gather_beside) && items * size >= kBesideBytes) {
          OASISKV_ASSIGN_OR_RETURN(row.beside, RunBeside(*target, grid.options, hbm.data(),
                                                         sink.data(), high.get(), low.get()));
        }
      }
    }
  }
  OASISKV_ASSIGN_OR_RETURN(const Spread after, copy_engine());
  std::printf("copy engine, contiguous: %.2f +- %.2f GB/s, afterwards %.2f +- %.2f\n",
              before.median, before.half_iqr, after.median, after.half_iqr);
  const double ceiling = std::max(before.median, after.median);
  std::printf("%8s %8s %10s %10s %14s %7s | %14s %7s %14s %7s\n", "entry", "items", "grid", "us",
              "GB/s", "of CE", "beside: GB/s", "of CE", "reader GB/s", "kept");
  for (const Row& row : table) {
    std::printf("%8d %8d %10s %10.1f %7.2f+-%5.2f %7.3f", static_cast<int>(row.entry),
                static_cast<int>(row.items), row.grid.c_str(), row.us, row.rate.median,
                row.rate.half_iqr, row.rate.median / ceiling);
    if (row.beside) {
      std::printf(" | %7.2f+-%5.2f %7.3f %7.0f+-%5.0f %7.3f", row.beside->gather.median,
                  row.beside->gather.half_iqr, row.beside->gather.median / ceiling,
                  row.beside->neighbour.median, row.beside->neighbour.half_iqr,
                  row.beside->neighbour.median / alone.median);
    }
    std::printf("\n");
  }
  return absl::OkStatus();
}

}  // namespace

int GatherCommand() {
  const absl::Status status = RunGather();
  if (status.ok()) return 0;
  std::fprintf(stderr, "oasis-gpu-bench gather: %s\n", std::string(status.message()).c_str());
  return ErrorCodeOf(status) == ErrorCode::kInvalidArgument ? 2 : 1;
}

}  // namespace oasiskv::bench
