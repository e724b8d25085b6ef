// select: the delta of a prediction against the residents.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "client/working_set/cuda/host/launch.h"
#include "client/working_set/cuda/kernels/kernels.h"
#include "common/cuda/status.h"
#include "common/status_macros.h"
#include "tools/bench/gpu/operations.h"
#include "tools/bench/rig/device.h"
#include "tools/bench/rig/device_layer.h"
#include "tools/bench/rig/timing.h"
#include "tools/bench/samples.h"

ABSL_FLAG(uint32_t, select_rounds, 15, "Replays that a figure is the median of.");

namespace oasiskv::bench {
namespace {

constexpr uint32_t kHeads = 8;
constexpr int kInGraph = 50;  // selections of one replay: a launch alone costs more than some

struct Point {
  uint32_t rows, resident, blocks, churn, cap;
};

// All pages are filled; of each list `churn` blocks are not resident.
absl::Status Measure(const Point& p, cudaStream_t stream) {
  const size_t lists = size_t{p.rows} * kHeads;
  std::vector<int32_t> map(lists * p.resident), predicted(lists * p.resident);
  std::mt19937_64 random(p.rows);
  std::vector<int32_t> blocks(p.blocks);
  std::iota(blocks.begin(), blocks.end(), 0);
  for (size_t l = 0; l < lists; ++l) {
    std::shuffle(blocks.begin(), blocks.end(), random);
    std::copy_n(blocks.begin(), p.resident, map.begin() + l * p.resident);
    std::copy_n(blocks.begin() + p.churn, p.resident, predicted.begin() + l * p.resident);
    std::shuffle(predicted.begin() + l * p.resident, predicted.begin() + (l + 1) * p.resident,
                 random);
  }
  gpu::Shape shape;
  shape.kv_heads = kHeads;
  shape.block_tokens = 16;
  shape.resident = p.resident;
  shape.max_blocks = p.blocks;
  shape.slots = p.rows;
  shape.cap = p.cap;
  OASISKV_ASSIGN_OR_RETURN(
      const DeviceLayer layer,
      DeviceLayer::Create({.shape = shape, .state = {.clock = 1, .complete = p.blocks - 1}}));
  OASISKV_RETURN_IF_ERROR(Upload(predicted, layer.memory.predicted));

  const auto time = [&](bool commits) -> absl::StatusOr<Spread> {
    const auto enqueue = [&]() -> absl::Status {
      for (int i = 0; i < kInGraph; ++i) {
        OASISKV_RETURN_IF_ERROR(
            Launched("select", gpu::Select(shape, layer.memory, layer.rows, true, p.cap, layer.plan,
                                           layer.counters, stream)));
        if (!commits) continue;
        OASISKV_RETURN_IF_ERROR(
            Launched("commit", gpu::Commit(shape, 0, layer.memory, layer.rows, layer.plan,
                                           layer.sources, layer.counters, &layer.error(), stream)));
      }
      return absl::OkStatus();
    };
    // The same state for every replay.
    const auto reset = [&]() -> absl::Status {
      OASISKV_CUDA_RETURN(cudaMemcpyAsync(layer.memory.map, map.data(),
                                          map.size() * sizeof(int32_t), cudaMemcpyHostToDevice,
                                          stream));
      return absl::OkStatus();
    };
    OASISKV_ASSIGN_OR_RETURN(const Graph graph, Graph::Capture(stream, enqueue));
    OASISKV_ASSIGN_OR_RETURN(std::vector<double> us,
                             TimeRepeats(
                                 stream, /*warmups=*/2, absl::GetFlag(FLAGS_select_rounds),
                                 [&](uint32_t) { return graph.Launch(stream); }, reset));
    for (double& one : us) one *= 1e6 / kInGraph;
    return SpreadOf(std::move(us));
  };
  OASISKV_ASSIGN_OR_RETURN(Spread select, time(false));
  OASISKV_ASSIGN_OR_RETURN(Spread both, time(true));
  std::printf("%6u %6u %8u %6u %6u %9.2f+-%4.2f %12.2f+-%4.2f\n", p.rows, p.resident, p.blocks,
              p.churn, p.cap, select.median, select.half_iqr, both.median, both.half_iqr);
  return absl::OkStatus();
}

}  // namespace

absl::Status RunSelect() {
  OASISKV_ASSIGN_OR_RETURN(cuda::Stream stream, cuda::Stream::Create(0));
  std::printf("%6s %6s %8s %6s %6s %15s %18s\n", "rows", "K", "blocks", "churn", "cap", "select us",
              "select+commit us");
  for (const Point& point :
       {Point{8, 128, 1024, 17, 6}, Point{32, 128, 1024, 17, 6}, Point{128, 128, 1024, 17, 6},
        Point{128, 128, 1024, 17, 128}, Point{128, 128, 8192, 17, 6},
        Point{32, 1024, 8192, 136, 51}, Point{128, 1024, 8192, 136, 51}}) {
    OASISKV_RETURN_IF_ERROR(Measure(point, stream.get()));
  }
  return absl::OkStatus();
}

}  // namespace oasiskv::bench
