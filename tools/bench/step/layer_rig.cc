#include "tools/bench/step/layer_rig.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_set>

#include "absl/strings/str_format.h"
#include "common/cuda/status.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"
#include "tools/bench/samples.h"
#include "tools/bench/step/timing.h"

namespace oasiskv::bench::step {
namespace {

constexpr char kWhat[] = "a layer driven by itself";

// Parts of one allocation, each on a boundary of 256 bytes.
class Carver {
 public:
  template <typename T>
  uint64_t Take(uint64_t count) {
    const uint64_t at = size_;
    size_ = (size_ + count * sizeof(T) + 255) / 256 * 256;
    return at;
  }
  uint64_t size() const { return size_; }

 private:
  uint64_t size_ = 0;
};

template <typename T>
absl::Status Copy(const std::vector<T>& items, std::byte* to) {
  OASISKV_CUDA_RETURN(
      cudaMemcpy(to, items.data(), items.size() * sizeof(T), cudaMemcpyHostToDevice));
  return absl::OkStatus();
}

}  // namespace

gpu::Shape OneLayer(const Model& model) {
  gpu::Shape s;
  s.layers = 1;
  s.kv_heads = model.kv_heads;
  s.group = model.group();
  s.head_dim = model.head_dim;
  s.block_tokens = Model::kBlockTokens;
  s.latent = model.latent();
  s.entry_bytes = model.entry_bytes();
  s.key_bytes = model.head_dim * Model::kElementBytes;
  s.summary_bytes = model.summary_bytes(s.summaries);
  return s;
}

absl::StatusOr<std::unique_ptr<LayerRig>> LayerRig::Create(const Model& model,
                                                           std::shared_ptr<const HostPool> pool,
                                                           const LayerRigOptions& options,
                                                           cudaStream_t stream) {
  std::unique_ptr<LayerRig> rig(new LayerRig(model, std::move(pool), options, stream));
  gpu::Shape& s = rig->shape_;
  s = OneLayer(model);
  s.resident = options.resident;
  s.ranked = options.ranked;
  s.max_blocks = rig->pool_->blocks();
  s.slots = options.rows;
  s.cap = options.cap;
  s.summaries = options.summaries;
  s.summary_bytes = model.summary_bytes(s.summaries);
  OASISKV_RETURN_IF_ERROR(rig->MakeMemory());
  OASISKV_RETURN_IF_ERROR(rig->MakeSources());
  // What was uploaded went by the legacy stream, for which `stream` does not wait.
  OASISKV_CUDA_RETURN(cudaStreamSynchronize(cudaStreamLegacy));
  OASISKV_ASSIGN_OR_RETURN(rig->walk_, Walk::Create(1, options.rows, model.query_columns(),
                                                    options.a, options.seed, stream));
  return rig;
}

absl::Status LayerRig::MakeMemory() {
  const gpu::Shape& s = shape_;
  const uint64_t pairs = uint64_t{s.slots} * s.kv_heads;
  const uint64_t page = uint64_t{s.kv_heads} * s.entry_bytes;
  OASISKV_ASSIGN_OR_RETURN(
      pages_, cuda::DeviceBuffer::Create(uint64_t{s.slots} * (s.resident + 1) * page, kWhat));
  memory_.pages.k = pages_.data();
  memory_.pages.v = s.latent ? nullptr : pages_.data() + s.entry_bytes / 2;
  memory_.pages.page_stride = static_cast<int64_t>(page);
  memory_.pages.head_stride = s.entry_bytes;
  memory_.pages.token_stride = s.key_bytes;

  const uint64_t summaries = pairs * s.max_blocks;
  OASISKV_ASSIGN_OR_RETURN(summaries_,
                           cuda::DeviceBuffer::Create(summaries * s.summary_bytes, kWhat));
  OASISKV_RETURN_IF_ERROR(Launched(FillSummaries(s.summaries, summaries_.data(), summaries,
                                                 s.head_dim, options_.seed + 17, stream_),
                                   "summaries"));
  memory_.summaries = summaries_.data();
  memory_.summaries_slot_stride =
      static_cast<int64_t>(uint64_t{s.kv_heads} * s.max_blocks * s.summary_bytes);

  Carver carver;
  const uint64_t items = pairs * s.resident;
  const uint64_t map = carver.Take<int32_t>(items), stamps = carver.Take<uint64_t>(items),
                 predicted = carver.Take<int32_t>(items),
                 scores = carver.Take<std::byte>(gpu::ScoreBytes(s, s.slots)),
                 state = carver.Take<gpu::SlotState>(s.slots),
                 slots = carver.Take<int32_t>(s.slots), count = carver.Take<uint32_t>(1);
  OASISKV_ASSIGN_OR_RETURN(books_, cuda::DeviceBuffer::Create(carver.size(), kWhat));
  std::byte* base = books_.data();
  OASISKV_CUDA_RETURN(cudaMemset(base + map, 0xff, items * sizeof(int32_t)));
  memory_.map = reinterpret_cast<int32_t*>(base + map);
  memory_.stamps = reinterpret_cast<uint64_t*>(base + stamps);
  memory_.predicted = reinterpret_cast<int32_t*>(base + predicted);
  memory_.scores = reinterpret_cast<float*>(base + scores);
  memory_.state = reinterpret_cast<gpu::SlotState*>(base + state);
  gpu::SlotState start;
  start.complete = s.max_blocks;
  start.local_tokens = 1;
  OASISKV_RETURN_IF_ERROR(Copy(std::vector<gpu::SlotState>(s.slots, start), base + state));
  std::vector<int32_t> all(s.slots);
  std::iota(all.begin(), all.end(), 0);
  OASISKV_RETURN_IF_ERROR(Copy(all, base + slots));
  OASISKV_RETURN_IF_ERROR(Copy(std::vector<uint32_t>{s.slots}, base + count));
  rows_ = {reinterpret_cast<int32_t*>(base + slots), reinterpret_cast<uint32_t*>(base + count),
           s.slots};

  Carver plan;
  plan_.capacity = static_cast<uint32_t>(pairs * (std::min(options_.resident, options_.cap) + 1));
  const uint64_t plan_count = plan.Take<uint32_t>(1),
                 plan_items = plan.Take<gpu::PlanItem>(plan_.capacity),
                 groups = plan.Take<gpu::PlanGroup>(pairs);
  OASISKV_ASSIGN_OR_RETURN(plan_memory_, cuda::DeviceBuffer::Create(plan.size(), kWhat));
  plan_.count = reinterpret_cast<uint32_t*>(plan_memory_.data() + plan_count);
  plan_.items = reinterpret_cast<gpu::PlanItem*>(plan_memory_.data() + plan_items);
  plan_.groups = reinterpret_cast<gpu::PlanGroup*>(plan_memory_.data() + groups);
  OASISKV_ASSIGN_OR_RETURN(counters_,
                           cuda::DeviceBuffer::Create(s.slots * sizeof(gpu::SlotCounters), kWhat));
  OASISKV_ASSIGN_OR_RETURN(errors_, cuda::PinnedBuffer::Create(sizeof(gpu::ErrorWord), kWhat));
  return absl::OkStatus();
}

absl::Status LayerRig::MakeSources() {
  std::vector<uint64_t> frames;
  for (uint32_t sequence = 0; sequence < pool_->sequences(); ++sequence) {
    for (uint32_t b = 0; b < pool_->blocks(); ++b) {
      frames.push_back(reinterpret_cast<uint64_t>(pool_->Frame(sequence, b)));
    }
  }
  OASISKV_ASSIGN_OR_RETURN(frames_, cuda::DeviceBuffer::Create(frames.size() * 8, kWhat));
  OASISKV_RETURN_IF_ERROR(Copy(frames, frames_.data()));
  std::vector<gpu::HeadSource> sources;
  for (uint32_t slot = 0; slot < shape_.slots; ++slot) {
    for (uint32_t head = 0; head < shape_.kv_heads; ++head) {
      gpu::HeadSource source;
      source.frames =
          frames_.As<uint64_t>() + uint64_t{slot % pool_->sequences()} * pool_->blocks();
      source.entry_offset = uint64_t{head} * shape_.entry_bytes;
      sources.push_back(source);
    }
  }
  OASISKV_ASSIGN_OR_RETURN(
      sources_, cuda::DeviceBuffer::Create(sources.size() * sizeof(gpu::HeadSource), kWhat));
  return Copy(sources, sources_.data());
}

absl::Status LayerRig::Score() {
  return Launched(gpu::ScoreTopK(shape_, memory_, rows_, walk_.DraftsOfLayer(0),
                                 gpu::QueryType::kBFloat16, model_.query_columns(), stream_),
                  "score");
}

absl::StatusOr<std::vector<int32_t>> LayerRig::Predicted() {
  std::vector<int32_t> list(uint64_t{shape_.slots} * shape_.kv_heads * shape_.resident);
  OASISKV_CUDA_RETURN(cudaMemcpyAsync(list.data(), memory_.predicted, list.size() * 4,
                                      cudaMemcpyDeviceToHost, stream_));
  OASISKV_CUDA_RETURN(cudaStreamSynchronize(stream_));
  return list;
}

absl::StatusOr<double> LayerRig::Churn(float a, uint32_t steps) {
  walk_.set_a(a);
  std::vector<int32_t> before;
  uint64_t changed = 0;
  for (uint32_t step = 0; step <= steps; ++step) {
    OASISKV_RETURN_IF_ERROR(walk_.Advance(stream_));
    OASISKV_RETURN_IF_ERROR(Score());
    OASISKV_ASSIGN_OR_RETURN(std::vector<int32_t> now, Predicted());
    for (size_t first = 0; step > 0 && first < now.size(); first += shape_.resident) {
      const auto begin = before.begin() + static_cast<std::ptrdiff_t>(first);
      const std::unordered_set<int32_t> old(begin, begin + shape_.resident);
      for (uint32_t i = 0; i < shape_.resident; ++i) changed += !old.contains(now[first + i]);
    }
    before = std::move(now);
  }
  return static_cast<double>(changed) /
         (static_cast<double>(steps) * shape_.slots * shape_.kv_heads);
}

absl::StatusOr<LayerStageSeconds> LayerRig::StageSeconds(uint32_t warmup, uint32_t steps) {
  constexpr int kMarks = 4;
  std::vector<TimedEvent> marks;
  for (int i = 0; i < kMarks; ++i) {
    OASISKV_ASSIGN_OR_RETURN(TimedEvent event, TimedEvent::Create());
    marks.push_back(std::move(event));
  }
  const auto mark = [&](int i) -> absl::Status {
    OASISKV_CUDA_RETURN(cudaEventRecord(marks[static_cast<size_t>(i)].get(), stream_));
    return absl::OkStatus();
  };
  std::vector<double> score, select, gather;
  auto* sources = sources_.As<gpu::HeadSource>();
  auto* counters = counters_.As<gpu::SlotCounters>();
  auto* errors = errors_.As<gpu::ErrorWord>();
  const gpu::GatherOptions grid{options_.grid.ctas, options_.grid.threads, options_.grid.loads};
  for (uint32_t step = 0; step < warmup + steps; ++step) {
    OASISKV_RETURN_IF_ERROR(walk_.Advance(stream_));
    OASISKV_RETURN_IF_ERROR(mark(0));
    OASISKV_RETURN_IF_ERROR(Score());
    OASISKV_RETURN_IF_ERROR(mark(1));
    OASISKV_RETURN_IF_ERROR(Launched(gpu::Select(shape_, memory_, rows_, /*predicts=*/true,
                                                 options_.cap, plan_, counters, stream_),
                                     "select"));
    OASISKV_RETURN_IF_ERROR(mark(2));
    OASISKV_RETURN_IF_ERROR(
        Launched(gpu::Gather(shape_, 0, memory_, plan_, sources, grid, errors, stream_), "gather"));
    OASISKV_RETURN_IF_ERROR(
        Launched(gpu::Commit(shape_, 0, memory_, rows_, plan_, sources, counters, errors, stream_),
                 "commit"));
    OASISKV_RETURN_IF_ERROR(mark(3));
    OASISKV_CUDA_RETURN(cudaStreamSynchronize(stream_));
    if (step < warmup) continue;
    for (auto& [seconds, i] : {std::pair{&score, 0u}, {&select, 1u}, {&gather, 2u}}) {
      OASISKV_ASSIGN_OR_RETURN(const double one, SecondsBetween(marks[i], marks[i + 1]));
      seconds->push_back(one);
    }
  }
  if (errors->code != 0) {
    return MakeError(ErrorCode::kInternal,
                     absl::StrFormat("a layer driven by itself: error %d of slot %d", errors->code,
                                     errors->slot));
  }
  return LayerStageSeconds{Quantile(score, 0.5), Quantile(select, 0.5), Quantile(gather, 0.5)};
}

absl::StatusOr<Calibration> CalibrateChurn(const Model& model, std::shared_ptr<const HostPool> pool,
                                           uint32_t resident, SummaryType summaries, double wanted,
                                           double tolerance, cudaStream_t stream) {
  constexpr uint32_t kPairs = 128, kSteps = 12, kTurns = 24;
  LayerRigOptions options;
  options.rows = std::max(1u, kPairs / model.kv_heads);
  options.resident = resident;
  options.cap = resident;
  options.summaries = summaries;
  OASISKV_ASSIGN_OR_RETURN(std::unique_ptr<LayerRig> rig,
                           LayerRig::Create(model, std::move(pool), options, stream));
  // Churn grows with 1 - a, which is searched by its logarithm.
  double low = std::log(1e-6), high = std::log(1.0);
  Calibration found;
  for (uint32_t turn = 0; turn < kTurns; ++turn) {
    const double middle = (low + high) / 2;
    found.a = static_cast<float>(1 - std::exp(middle));
    OASISKV_ASSIGN_OR_RETURN(found.churn, rig->Churn(found.a, kSteps));
    if (std::abs(found.churn - wanted) <= tolerance) return found;
    (found.churn > wanted ? high : low) = middle;
  }
  return MakeError(ErrorCode::kInvalidArgument,
                   absl::StrFormat("--churn=%.1f: no walk of the queries gives it; the nearest "
                                   "gave %.1f of %d",
                                   wanted, found.churn, resident));
}

}  // namespace oasiskv::bench::step
