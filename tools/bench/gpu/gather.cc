// gather: random entries over a large footprint of registered host memory.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/working_set/cuda/host/launch.h"
#include "client/working_set/cuda/kernels/kernels.h"
#include "common/cuda/status.h"
#include "common/status_macros.h"
#include "tools/bench/gpu/gather_target.h"
#include "tools/bench/gpu/operations.h"
#include "tools/bench/rig/device.h"
#include "tools/bench/rig/hbm_reader.h"
#include "tools/bench/rig/timing.h"
#include "tools/bench/samples.h"

ABSL_FLAG(std::vector<std::string>, gather_entry_bytes,
          std::vector<std::string>({"4096", "8192", "16384", "65536"}),
          "Sizes of an entry, multiples of 512.");
ABSL_FLAG(std::vector<std::string>, gather_grids,
          std::vector<std::string>({"1x1024x4", "2x1024x4", "4x1024x4", "8x512x4", "8x1024x4"}),
          "Grids to measure: CTAs x threads x loads in flight of a thread.");
ABSL_FLAG(std::vector<std::string>, gather_items, std::vector<std::string>({"65536"}),
          "Entries of a launch, where they have 8 KiB; for other sizes as many bytes.");
ABSL_FLAG(uint64_t, gather_footprint, uint64_t{8} << 30,
          "Bytes of host memory that entries are drawn from.");
ABSL_FLAG(uint32_t, gather_rounds, 15, "Launches that a figure is the median of.");
ABSL_FLAG(bool, gather_beside, true, "Also beside a kernel that is bound by HBM.");

namespace oasiskv::bench {
namespace {

constexpr uint64_t kHbmBytes = uint64_t{8} << 30;
constexpr uint64_t kLaunchEntryBytes = 8192;
constexpr uint64_t kBesideBytes = uint64_t{128} << 20;  // launches long enough to overlap

struct Grid {
  std::string name;
  gpu::GatherOptions options;
};

absl::StatusOr<std::vector<Grid>> Grids() {
  std::vector<Grid> grids;
  for (const std::string& text : absl::GetFlag(FLAGS_gather_grids)) {
    OASISKV_ASSIGN_OR_RETURN(const std::vector<uint64_t> n,
                             Numbers<uint64_t>(absl::StrSplit(text, 'x'), "gather_grids"));
    if (n.size() != 3) {
      return Refuse(absl::StrCat("--gather_grids: '", text,
                                 "' is not CTAs x threads x loads, as in 4x1024x4"));
    }
    grids.push_back({text,
                     {.ctas = static_cast<uint32_t>(n[0]),
                      .threads = static_cast<uint32_t>(n[1]),
                      .loads = static_cast<uint32_t>(n[2])}});
  }
  return grids;
}

// GB/s of `launch(i)`, each of `bytes`.
absl::StatusOr<Spread> Rate(uint32_t rounds, double bytes, cudaStream_t stream,
                            const std::function<absl::Status(uint32_t)>& launch) {
  OASISKV_ASSIGN_OR_RETURN(std::vector<double> rates,
                           TimeRepeats(stream, /*warmups=*/2, rounds, launch));
  for (double& rate : rates) rate = bytes / rate * 1e-9;
  return SpreadOf(std::move(rates));
}

// The neighbour: many short CTAs, so that other kernels find room between them.
absl::Status ReadNeighbour(const std::byte* hbm, uint32_t* sink, cudaStream_t stream) {
  return Launched("reading HBM",
                  ReadHbm(hbm, kHbmBytes, sink, static_cast<uint32_t>(kHbmBytes / kReadChunk),
                          ReadOrder::kChunks, stream));
}

// Launches one after another, as RunBeside has them: the rate of a busy GPU, not of a rested one.
absl::StatusOr<Spread> ReaderAlone(const std::byte* hbm, uint32_t* sink, cudaStream_t stream) {
  constexpr uint32_t kReads = 100, kWarm = 10;
  std::vector<cuda::Event> points;
  for (uint32_t i = 0; i < kReads; ++i) {
    OASISKV_RETURN_IF_ERROR(ReadNeighbour(hbm, sink, stream));
    OASISKV_ASSIGN_OR_RETURN(cuda::Event point, Mark(stream));
    points.push_back(std::move(point));
  }
  OASISKV_CUDA_RETURN(cudaStreamSynchronize(stream));
  std::vector<double> rates;
  for (uint32_t i = kWarm; i + 1 < kReads; ++i) {
    OASISKV_ASSIGN_OR_RETURN(double seconds, SecondsBetween(points[i], points[i + 1]));
    rates.push_back(static_cast<double>(kHbmBytes) / seconds * 1e-9);
  }
  return SpreadOf(std::move(rates));
}

struct Beside {
  Spread gather, neighbour;
};

// Rates of those launches of either stream during all of which the other was busy.
absl::StatusOr<Beside> RunBeside(GatherTarget& target, const gpu::GatherOptions& options,
                                 const std::byte* hbm, uint32_t* sink, cudaStream_t high,
                                 cudaStream_t low) {
  constexpr uint32_t kGathers = 12, kReads = 110;
  std::vector<cuda::Event> gathers, reads;
  OASISKV_ASSIGN_OR_RETURN(cuda::Event start, Mark(low));
  reads.push_back(std::move(start));
  for (uint32_t i = 0; i < kReads; ++i) {
    OASISKV_RETURN_IF_ERROR(ReadNeighbour(hbm, sink, low));
    OASISKV_ASSIGN_OR_RETURN(cuda::Event point, Mark(low));
    reads.push_back(std::move(point));
    if (i == 3) OASISKV_CUDA_RETURN(cudaStreamWaitEvent(high, reads.back().get()));
  }
  for (uint32_t i = 0; i <= kGathers; ++i) {
    OASISKV_ASSIGN_OR_RETURN(cuda::Event point, Mark(high));
    gathers.push_back(std::move(point));
    if (i < kGathers) OASISKV_RETURN_IF_ERROR(target.Launch(i, options, high));
  }
  OASISKV_CUDA_RETURN(cudaDeviceSynchronize());
  const auto times =
      [&](const std::vector<cuda::Event>& points) -> absl::StatusOr<std::vector<double>> {
    std::vector<double> seconds;
    for (const cuda::Event& point : points) {
      OASISKV_ASSIGN_OR_RETURN(seconds.emplace_back(), SecondsBetween(reads.front(), point));
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

}  // namespace

absl::Status RunGather() {
  OASISKV_ASSIGN_OR_RETURN(
      std::vector<uint64_t> sizes,
      Numbers<uint64_t>(absl::GetFlag(FLAGS_gather_entry_bytes), "gather_entry_bytes"));
  OASISKV_ASSIGN_OR_RETURN(std::vector<uint64_t> launches,
                           Numbers<uint64_t>(absl::GetFlag(FLAGS_gather_items), "gather_items"));
  OASISKV_ASSIGN_OR_RETURN(std::vector<Grid> grids, Grids());
  const uint32_t rounds = absl::GetFlag(FLAGS_gather_rounds);
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
  OASISKV_ASSIGN_OR_RETURN(auto sink, DeviceArray<uint32_t>::Zeroed(1));
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
      OASISKV_ASSIGN_OR_RETURN(std::unique_ptr<GatherTarget> target,
                               GatherTarget::Make(*host, size, static_cast<uint32_t>(items)));
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

}  // namespace oasiskv::bench
