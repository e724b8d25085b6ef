// oasis-gpu-bench score: ScoreTopK over the summaries of one layer.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "client/working_set/cuda/kernels/kernels.h"
#include "client/working_set/cuda/kernels/rank.h"
#include "client/working_set/cuda/kernels/score_tuning.h"
#include "common/cuda/handles.h"
#include "common/cuda/status.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"
#include "tools/bench/gpu/commands.h"
#include "tools/bench/gpu/score_data.h"
#include "tools/bench/gpu/timing.h"

ABSL_FLAG(std::vector<std::string>, batch, (std::vector<std::string>{"8", "32", "128"}),
          "score: rows of a step");
ABSL_FLAG(std::vector<std::string>, blocks, (std::vector<std::string>{"1024", "2048", "8192"}),
          "score: blocks of a request");
ABSL_FLAG(int, kv_heads, 8, "score: KV heads");
ABSL_FLAG(int, group, 4, "score: query heads of a KV head");
ABSL_FLAG(int, head_dim, 128, "score: elements of a key");
ABSL_FLAG(int, resident, 128, "score: K");
ABSL_FLAG(int, combine, 0, "score: 0 max, 1 mean, 2 sum, 3 normalized max");
ABSL_FLAG(double, bound_weight, 1.0, "score: bound weight");
ABSL_FLAG(std::string, summaries, "as_keys",
          "score: what summaries are kept as, as_keys (BF16) or fp8 (E4M3)");
ABSL_FLAG(bool, tunings, false, "score: also every lay of the kernel over the GPU");
ABSL_FLAG(int, repeats, 31, "replays whose median counts");
ABSL_FLAG(double, gib, 2.0, "score: memory that the buffers rotate over, many times the L2 cache");

namespace oasiskv::bench {
namespace {

struct Setting {
  uint32_t batch = 0, blocks = 0;
};

// Thread contract: one thread. As many layers as fill the memory to rotate over.
class ScoreBench {
 public:
  explicit ScoreBench(Setting setting) : setting_(setting) {}

  absl::Status Make() {
    shape_.kv_heads = absl::GetFlag(FLAGS_kv_heads);
    shape_.group = absl::GetFlag(FLAGS_group);
    shape_.head_dim = absl::GetFlag(FLAGS_head_dim);
    shape_.block_tokens = 16;
    shape_.element = gpu::Element::kBFloat16;
    shape_.key_bytes = shape_.head_dim * 2;
    const std::string summaries = absl::GetFlag(FLAGS_summaries);
    if (summaries != "as_keys" && summaries != "fp8") {
      return MakeError(ErrorCode::kInvalidArgument,
                       "--summaries=" + summaries + " is neither as_keys nor fp8");
    }
    if (summaries == "fp8") shape_.summaries = SummaryType::kFloat8;
    shape_.summary_bytes = 2 * (summaries == "fp8" ? shape_.head_dim : shape_.key_bytes);
    shape_.resident = std::min<uint32_t>(absl::GetFlag(FLAGS_resident), setting_.blocks);
    shape_.max_blocks = setting_.blocks;
    shape_.slots = setting_.batch;
    shape_.combine = static_cast<GroupCombine>(absl::GetFlag(FLAGS_combine));
    const double weight = absl::GetFlag(FLAGS_bound_weight);
    shape_.near = static_cast<float>((1.0 + weight) / 2);
    shape_.far = static_cast<float>((1.0 - weight) / 2);

    const uint64_t lists = uint64_t{setting_.batch} * shape_.kv_heads;
    bytes_ = lists * setting_.blocks * shape_.summary_bytes;
    layers_ = std::max<uint64_t>(2, absl::GetFlag(FLAGS_gib) * (1 << 30) / bytes_);
    const uint64_t queries = lists * shape_.group * shape_.head_dim;
    OASISKV_RETURN_IF_ERROR(Take(layers_ * bytes_, &summaries_));
    OASISKV_RETURN_IF_ERROR(Take(queries * 2, &queries_));
    OASISKV_RETURN_IF_ERROR(Take(lists * shape_.resident * 4, &predicted_));
    OASISKV_RETURN_IF_ERROR(Take(gpu::ScoreBytes(shape_, setting_.batch), &scores_));
    OASISKV_RETURN_IF_ERROR(Take(setting_.batch * sizeof(gpu::SlotState), &state_));
    OASISKV_RETURN_IF_ERROR(Take(setting_.batch * 4, &slots_));
    OASISKV_RETURN_IF_ERROR(Take(4, &count_));
    std::vector<gpu::SlotState> state(setting_.batch);
    for (gpu::SlotState& s : state) s.complete = setting_.blocks;
    std::vector<int32_t> slots(setting_.batch);
    std::iota(slots.begin(), slots.end(), 0);
    OASISKV_CUDA_RETURN(cudaMemcpy(state_.data(), state.data(), state.size() * sizeof(state[0]),
                                   cudaMemcpyHostToDevice));
    OASISKV_CUDA_RETURN(
        cudaMemcpy(slots_.data(), slots.data(), slots.size() * 4, cudaMemcpyHostToDevice));
    OASISKV_CUDA_RETURN(cudaMemcpy(count_.data(), &setting_.batch, 4, cudaMemcpyHostToDevice));
    const char* error = FillSummaries(summaries_.data(), layers_ * lists * setting_.blocks,
                                      shape_.head_dim, nullptr, shape_.summaries);
    if (error == nullptr) error = FillQueries(queries_.data(), queries, nullptr);
    if (error != nullptr) return MakeError(ErrorCode::kInternal, error);
    OASISKV_CUDA_RETURN(cudaDeviceSynchronize());
    return absl::OkStatus();
  }

  // Seconds a layer.
  absl::StatusOr<Spread> Score(const gpu::ScoreTuning& tuning) {
    return EachLayer([&](uint64_t layer, cudaStream_t stream) {
      return gpu::ScoreTopKTuned(
          shape_, Layer(layer), rows(), queries_.data(), gpu::QueryType::kBFloat16,
          int64_t{shape_.kv_heads} * shape_.group * shape_.head_dim, tuning, stream);
    });
  }
  // Of the scores that are there.
  absl::StatusOr<Spread> Rank() {
    return EachLayer([&](uint64_t layer, cudaStream_t stream) {
      return gpu::RankScores(shape_, Layer(layer), rows(), /*full_local=*/true, stream);
    });
  }
  absl::StatusOr<Spread> Read() {
    return EachLayer([&](uint64_t layer, cudaStream_t stream) {
      return ReadAll(summaries_.data() + layer * bytes_, bytes_, count_.As<uint32_t>() + 0, stream);
    });
  }

  double bytes() const { return static_cast<double>(bytes_); }

 private:
  static absl::Status Take(uint64_t bytes, cuda::DeviceBuffer* into) {
    OASISKV_ASSIGN_OR_RETURN(*into, cuda::DeviceBuffer::Create(bytes, "oasis-gpu-bench score"));
    return absl::OkStatus();
  }
  gpu::LayerMemory Layer(uint64_t layer) const {
    gpu::LayerMemory mem;
    mem.summaries = summaries_.data() + layer * bytes_;
    mem.summaries_slot_stride = static_cast<int64_t>(bytes_ / setting_.batch);
    mem.predicted = predicted_.As<int32_t>();
    mem.scores = scores_.As<float>();
    mem.state = state_.As<gpu::SlotState>();
    return mem;
  }
  gpu::Rows rows() const { return {slots_.As<int32_t>(), count_.As<uint32_t>(), setting_.batch}; }
  template <typename Enqueue>
  absl::StatusOr<Spread> EachLayer(const Enqueue& enqueue) {
    auto spread = TimeGraph(
        [&](cudaStream_t stream) {
          const char* error = nullptr;
          for (uint64_t i = 0; i < layers_ && error == nullptr; ++i) error = enqueue(i, stream);
          return error;
        },
        absl::GetFlag(FLAGS_repeats));
    if (!spread.ok()) return spread.status();
    const auto layers = static_cast<double>(layers_);
    return Spread{spread->median / layers, spread->half_iqr / layers};
  }

  const Setting setting_;
  gpu::Shape shape_;
  uint64_t bytes_ = 0, layers_ = 0;
  cuda::DeviceBuffer summaries_, queries_, predicted_, scores_, state_, slots_, count_;
};

// Bytes read and written a second by the runtime's own copy.
absl::StatusOr<double> CopyRate() {
  constexpr uint64_t kBytes = uint64_t{1} << 30;
  OASISKV_ASSIGN_OR_RETURN(const cuda::DeviceBuffer buffer,
                           cuda::DeviceBuffer::Create(2 * kBytes, "oasis-gpu-bench score"));
  OASISKV_ASSIGN_OR_RETURN(const Spread spread,
                           TimeGraph(
                               [&](cudaStream_t stream) {
                                 const cudaError_t error =
                                     cudaMemcpyAsync(buffer.data() + kBytes, buffer.data(), kBytes,
                                                     cudaMemcpyDeviceToDevice, stream);
                                 return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
                               },
                               absl::GetFlag(FLAGS_repeats)));
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

absl::Status Run() {
  OASISKV_ASSIGN_OR_RETURN(const double copy, CopyRate());
  std::printf("device-to-device copy: %.0f GB/s read and written\n", copy * 1e-9);
  std::printf("%5s %6s  %-22s %9s    %5s %8s %6s\n", "batch", "blocks", "", "us", "", "GB/s",
              "ratio");
  for (const std::string& batch : absl::GetFlag(FLAGS_batch)) {
    for (const std::string& blocks : absl::GetFlag(FLAGS_blocks)) {
      Setting setting;
      if (!absl::SimpleAtoi(batch, &setting.batch) || setting.batch == 0 ||
          !absl::SimpleAtoi(blocks, &setting.blocks) || setting.blocks == 0) {
        return MakeError(ErrorCode::kInvalidArgument,
                         "--batch and --blocks take whole numbers above 0, with commas between");
      }
      OASISKV_RETURN_IF_ERROR(Measure(setting));
    }
  }
  return absl::OkStatus();
}

}  // namespace

int ScoreCommand() {
  const absl::Status status = Run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "oasis-gpu-bench score: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace oasiskv::bench
