// score: ScoreTopK over the summaries of one layer.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "client/working_set/cuda/host/device_memory.h"
#include "client/working_set/cuda/host/launch.h"
#include "client/working_set/cuda/kernels/kernels.h"
#include "client/working_set/cuda/kernels/rank.h"
#include "client/working_set/cuda/kernels/score_tuning.h"
#include "common/cuda/status.h"
#include "common/status_macros.h"
#include "tools/bench/gpu/flags.h"
#include "tools/bench/gpu/operations.h"
#include "tools/bench/gpu/score_data.h"
#include "tools/bench/rig/device.h"
#include "tools/bench/rig/device_layer.h"
#include "tools/bench/rig/hbm_reader.h"
#include "tools/bench/rig/timing.h"
#include "tools/bench/samples.h"

ABSL_FLAG(std::vector<std::string>, batch, (std::vector<std::string>{"8", "32", "128"}),
          "Rows of a step.");
ABSL_FLAG(std::vector<std::string>, blocks, (std::vector<std::string>{"1024", "2048", "8192"}),
          "Blocks of a request.");
ABSL_FLAG(int, kv_heads, 8, "KV heads.");
ABSL_FLAG(int, group, 4, "Query heads of a KV head.");
ABSL_FLAG(int, head_dim, 128, "Elements of a key.");
ABSL_FLAG(int, combine, 0,
          "How the scores of a group become one: 0 max, 1 mean, 2 sum, 3 normalized max.");
ABSL_FLAG(double, bound_weight, 1.0, "Weight of the bound; see WorkingSetOptions::bound_weight.");
ABSL_FLAG(bool, tunings, false,
          "Also the two kernels alone, and every way to lay the first over the GPU.");
ABSL_FLAG(uint32_t, repeats, 31, "Replays that a figure is the median of.");
ABSL_FLAG(double, gib, 2.0, "GiB of summaries that are read in turn, many times the L2 cache.");

namespace oasiskv::bench {
namespace {

struct Setting {
  uint32_t batch = 0, blocks = 0;
};

// Seconds of a replay of what `enqueue` puts on the stream that it is given.
absl::StatusOr<Spread> TimeGraph(const std::function<absl::Status(cudaStream_t)>& enqueue) {
  OASISKV_ASSIGN_OR_RETURN(const cuda::Stream stream, cuda::Stream::Create(0));
  OASISKV_ASSIGN_OR_RETURN(const Graph graph,
                           Graph::Capture(stream.get(), [&] { return enqueue(stream.get()); }));
  OASISKV_ASSIGN_OR_RETURN(std::vector<double> seconds,
                           TimeRepeats(stream.get(), /*warmups=*/2, absl::GetFlag(FLAGS_repeats),
                                       [&](uint32_t) { return graph.Launch(stream.get()); }));
  return SpreadOf(std::move(seconds));
}

// Thread contract: one thread. As many pools of summaries as fill --gib, each read in its turn, so
// that none comes out of the L2 cache.
class ScoreBench {
 public:
  explicit ScoreBench(Setting setting) : setting_(setting) {}

  absl::Status Make() {
    gpu::Shape s;
    s.kv_heads = absl::GetFlag(FLAGS_kv_heads);
    s.group = absl::GetFlag(FLAGS_group);
    s.head_dim = absl::GetFlag(FLAGS_head_dim);
    s.block_tokens = 16;
    s.element = gpu::Element::kBFloat16;
    s.key_bytes = s.head_dim * 2;
    OASISKV_ASSIGN_OR_RETURN(s.summaries, SummariesFromFlag());
    s.summary_bytes = 2 * (s.summaries == SummaryType::kFloat8 ? s.head_dim : s.key_bytes);
    s.resident = std::min(absl::GetFlag(FLAGS_resident), setting_.blocks);
    s.max_blocks = setting_.blocks;
    s.slots = setting_.batch;
    s.combine = static_cast<GroupCombine>(absl::GetFlag(FLAGS_combine));
    const double weight = absl::GetFlag(FLAGS_bound_weight);
    s.near = static_cast<float>((1.0 + weight) / 2);
    s.far = static_cast<float>((1.0 - weight) / 2);

    bytes_ = uint64_t{s.slots} * static_cast<uint64_t>(SummariesSlotStride(s));
    layers_ = std::max<uint64_t>(2, absl::GetFlag(FLAGS_gib) * (1 << 30) / bytes_);
    OASISKV_ASSIGN_OR_RETURN(
        layer_, DeviceLayer::Create(
                    {.shape = s, .summary_layers = layers_, .state = {.complete = s.max_blocks}}));
    const uint64_t queries = uint64_t{s.slots} * s.kv_heads * s.group * s.head_dim;
    OASISKV_ASSIGN_OR_RETURN(queries_, DeviceArray<std::byte>::Zeroed(queries * 2));
    OASISKV_ASSIGN_OR_RETURN(sink_, DeviceArray<uint32_t>::Zeroed(1));
    OASISKV_RETURN_IF_ERROR(Launched(
        "summaries", FillSummaries(layer_.memory.summaries, layers_ * bytes_ / s.summary_bytes,
                                   s.head_dim, nullptr, s.summaries)));
    OASISKV_RETURN_IF_ERROR(Launched("queries", FillQueries(queries_.data(), queries, nullptr)));
    OASISKV_CUDA_RETURN(cudaDeviceSynchronize());
    return absl::OkStatus();
  }

  // Seconds per layer.
  absl::StatusOr<Spread> Score(const gpu::ScoreTuning& tuning) {
    const gpu::Shape& s = layer_.shape;
    return EachLayer([&](const gpu::LayerMemory& memory, cudaStream_t stream) {
      return gpu::ScoreTopKTuned(s, memory, layer_.rows, queries_.data(), gpu::QueryType::kBFloat16,
                                 int64_t{s.kv_heads} * s.group * s.head_dim, tuning, stream);
    });
  }
  // Of the scores that are there.
  absl::StatusOr<Spread> Rank() {
    return EachLayer([&](const gpu::LayerMemory& memory, cudaStream_t stream) {
      return gpu::RankScores(layer_.shape, memory, layer_.rows, /*full_local=*/true, stream);
    });
  }
  absl::StatusOr<Spread> Read() {
    OASISKV_ASSIGN_OR_RETURN(const uint32_t processors, Multiprocessors());
    return EachLayer([&](const gpu::LayerMemory& memory, cudaStream_t stream) {
      return ReadHbm(memory.summaries, bytes_, sink_.data(), 4 * processors, ReadOrder::kChunks,
                     stream);
    });
  }

  double bytes() const { return static_cast<double>(bytes_); }

 private:
  template <typename Enqueue>
  absl::StatusOr<Spread> EachLayer(const Enqueue& enqueue) {
    OASISKV_ASSIGN_OR_RETURN(
        const Spread all, TimeGraph([&](cudaStream_t stream) -> absl::Status {
          gpu::LayerMemory memory = layer_.memory;
          for (uint32_t i = 0; i < layers_; ++i, memory.summaries += bytes_) {
            OASISKV_RETURN_IF_ERROR(Launched("score", enqueue(memory, stream)));
          }
          return absl::OkStatus();
        }));
    return Spread{all.median / layers_, all.half_iqr / layers_};
  }

  const Setting setting_;
  DeviceLayer layer_;
  DeviceArray<std::byte> queries_;
  DeviceArray<uint32_t> sink_;
  uint64_t bytes_ = 0;  // of one pool
  uint32_t layers_ = 0;
};

// Bytes read and written per second by the runtime's own copy.
absl::StatusOr<double> CopyRate() {
  constexpr uint64_t kBytes = uint64_t{1} << 30;
  OASISKV_ASSIGN_OR_RETURN(const auto buffer, DeviceArray<std::byte>::Zeroed(2 * kBytes));
  OASISKV_ASSIGN_OR_RETURN(
      const Spread spread, TimeGraph([&](cudaStream_t stream) -> absl::Status {
        OASISKV_CUDA_RETURN(cudaMemcpyAsync(buffer.data() + kBytes, buffer.data(), kBytes,
                                            cudaMemcpyDeviceToDevice, stream));
        return absl::OkStatus();
      }));
  return 2.0 * kBytes / spread.median;
}

void Print(const Setting& s, const char* what, const Spread& time, double bytes, double read) {
  std::printf("%5u %6u  %-22s %9.2f +- %5.2f %8.0f %6.3f\n", s.batch, s.blocks, what,
              time.median * 1e6, time.half_iqr * 1e6, bytes / time.median * 1e-9,
              bytes / time.median / read);
  std::fflush(stdout);
}

absl::Status Measure(const Setting& setting) {
  ScoreBench bench(setting);
  OASISKV_RETURN_IF_ERROR(bench.Make());
  OASISKV_ASSIGN_OR_RETURN(const Spread read, bench.Read());
  const double rate = bench.bytes() / read.median;
  Print(setting, "reading alone", read, bench.bytes(), rate);
  OASISKV_ASSIGN_OR_RETURN(const Spread score, bench.Score({}));
  Print(setting, "score + top-K", score, bench.bytes(), rate);
  if (!absl::GetFlag(FLAGS_tunings)) return absl::OkStatus();
  OASISKV_ASSIGN_OR_RETURN(const Spread alone, bench.Score({.ranks = false}));
  Print(setting, "  score alone", alone, bench.bytes(), rate);
  OASISKV_ASSIGN_OR_RETURN(const Spread rank, bench.Rank());
  Print(setting, "  top-K alone", rank, bench.bytes(), rate);
  for (uint32_t together : {1u, 2u}) {
    for (uint32_t stages : {1u, 2u}) {
      for (uint32_t chunk : {8u, 16u, 24u, 48u, 96u}) {
        const auto time = bench.Score({.stages = stages, .together = together, .chunk = chunk});
        if (!time.ok()) continue;  // does not fit
        const std::string what = "  stages " + std::to_string(stages) + " of " +
                                 std::to_string(together) + " chunk " + std::to_string(chunk);
        Print(setting, what.c_str(), *time, bench.bytes(), rate);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunScore() {
  OASISKV_ASSIGN_OR_RETURN(const auto batches,
                           Numbers<uint32_t>(absl::GetFlag(FLAGS_batch), "batch"));
  OASISKV_ASSIGN_OR_RETURN(const auto lengths,
                           Numbers<uint32_t>(absl::GetFlag(FLAGS_blocks), "blocks"));
  OASISKV_ASSIGN_OR_RETURN(const double copy, CopyRate());
  std::printf("device-to-device copy: %.0f GB/s read and written\n", copy * 1e-9);
  std::printf("%5s %6s  %-22s %9s    %5s %8s %6s\n", "batch", "blocks", "", "us", "", "GB/s",
              "ratio");
  for (const uint32_t batch : batches) {
    for (const uint32_t blocks : lengths) OASISKV_RETURN_IF_ERROR(Measure({batch, blocks}));
  }
  return absl::OkStatus();
}

}  // namespace oasiskv::bench
