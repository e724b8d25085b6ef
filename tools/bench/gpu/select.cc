// select: the delta of a prediction against the residents.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "client/working_set/cuda/kernels/kernels.h"
#include "common/cuda/status.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"
#include "tools/bench/gpu/commands.h"
#include "tools/bench/gpu/device_array.h"
#include "tools/bench/gpu/event_timer.h"
#include "tools/bench/samples.h"

ABSL_FLAG(int, select_rounds, 15, "select: replays a figure is the median of.");

namespace oasiskv::bench {
namespace {

constexpr uint32_t kHeads = 8;
constexpr int kInGraph = 50;  // selections of one replay: a launch alone costs more than some

struct Point {
  uint32_t rows, resident, blocks, churn, cap;
};

absl::Status Launched(const char* error) {
  return error == nullptr ? absl::OkStatus() : MakeError(ErrorCode::kInternal, error);
}

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
  std::vector<int32_t> slots(p.rows);
  std::iota(slots.begin(), slots.end(), 0);
  OASISKV_ASSIGN_OR_RETURN(auto d_map, DeviceArray<int32_t>::Of(map));
  OASISKV_ASSIGN_OR_RETURN(auto d_predicted, DeviceArray<int32_t>::Of(predicted));
  OASISKV_ASSIGN_OR_RETURN(auto stamps, DeviceArray<uint64_t>::Zeroed(map.size()));
  OASISKV_ASSIGN_OR_RETURN(auto state, DeviceArray<gpu::SlotState>::Of(std::vector<gpu::SlotState>(
                                           p.rows, {.clock = 1, .complete = p.blocks - 1})));
  OASISKV_ASSIGN_OR_RETURN(auto counters, DeviceArray<gpu::SlotCounters>::Zeroed(p.rows));
  OASISKV_ASSIGN_OR_RETURN(auto d_slots, DeviceArray<int32_t>::Of(slots));
  OASISKV_ASSIGN_OR_RETURN(auto count, DeviceArray<uint32_t>::Of(std::vector<uint32_t>{p.rows}));
  OASISKV_ASSIGN_OR_RETURN(auto sources, DeviceArray<gpu::HeadSource>::Zeroed(lists));
  const uint32_t capacity = static_cast<uint32_t>(lists) * (p.cap + 1);
  OASISKV_ASSIGN_OR_RETURN(auto items, DeviceArray<gpu::PlanItem>::Zeroed(capacity));
  OASISKV_ASSIGN_OR_RETURN(auto groups, DeviceArray<gpu::PlanGroup>::Zeroed(lists));
  OASISKV_ASSIGN_OR_RETURN(auto planned, DeviceArray<uint32_t>::Zeroed(1));
  OASISKV_ASSIGN_OR_RETURN(auto error, cuda::PinnedBuffer::Create(sizeof(gpu::ErrorWord), "error"));
  gpu::LayerMemory mem;
  mem.map = d_map.data();
  mem.stamps = stamps.data();
  mem.predicted = d_predicted.data();
  mem.state = state.data();
  const gpu::Rows rows = {.slots = d_slots.data(), .count = count.data(), .max_rows = p.rows};
  const gpu::Plan plan = {.count = planned.data(),
                          .items = items.data(),
                          .groups = groups.data(),
                          .capacity = capacity};

  const auto time = [&](bool commits) -> absl::StatusOr<Spread> {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    OASISKV_CUDA_RETURN(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    absl::Status status;
    for (int i = 0; i < kInGraph; ++i) {
      status.Update(
          Launched(gpu::Select(shape, mem, rows, true, p.cap, plan, counters.data(), stream)));
      if (!commits) continue;
      status.Update(Launched(gpu::Commit(shape, 0, mem, rows, plan, sources.data(), counters.data(),
                                         error.As<gpu::ErrorWord>(), stream)));
    }
    OASISKV_CUDA_RETURN(cudaStreamEndCapture(stream, &graph));
    OASISKV_RETURN_IF_ERROR(status);
    OASISKV_CUDA_RETURN(cudaGraphInstantiate(&exec, graph, 0));
    std::vector<double> us;
    for (int i = -2; i < absl::GetFlag(FLAGS_select_rounds); ++i) {
      // The same state for every replay.
      OASISKV_CUDA_RETURN(cudaMemcpyAsync(d_map.data(), map.data(), map.size() * sizeof(int32_t),
                                          cudaMemcpyHostToDevice, stream));
      OASISKV_ASSIGN_OR_RETURN(TimePoint start, TimePoint::Record(stream));
      OASISKV_CUDA_RETURN(cudaGraphLaunch(exec, stream));
      OASISKV_ASSIGN_OR_RETURN(TimePoint end, TimePoint::Record(stream));
      OASISKV_CUDA_RETURN(cudaStreamSynchronize(stream));
      OASISKV_ASSIGN_OR_RETURN(double seconds, end.Since(start));
      if (i >= 0) us.push_back(seconds / kInGraph * 1e6);
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    return SpreadOf(std::move(us));
  };
  OASISKV_ASSIGN_OR_RETURN(Spread select, time(false));
  OASISKV_ASSIGN_OR_RETURN(Spread both, time(true));
  std::printf("%6u %6u %8u %6u %6u %9.2f+-%4.2f %12.2f+-%4.2f\n", p.rows, p.resident, p.blocks,
              p.churn, p.cap, select.median, select.half_iqr, both.median, both.half_iqr);
  return absl::OkStatus();
}

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

}  // namespace

int SelectCommand() {
  const absl::Status status = RunSelect();
  if (status.ok()) return 0;
  std::fprintf(stderr, "oasis-gpu-bench select: %s\n", std::string(status.message()).c_str());
  return ErrorCodeOf(status) == ErrorCode::kInvalidArgument ? 2 : 1;
}

}  // namespace oasiskv::bench
