#include "tools/bench/step/layer_rig.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_set>

#include "absl/strings/str_format.h"
#include "client/working_set/cuda/host/launch.h"
#include "common/cuda/status.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"
#include "tools/bench/rig/timing.h"
#include "tools/bench/samples.h"
#include "tools/bench/step/kernels/small_kernels.h"

namespace oasiskv::bench::step {

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
  gpu::Shape s = OneLayer(model);
  s.resident = options.resident;
  s.ranked = options.ranked;
  s.max_blocks = rig->pool_->blocks();
  s.slots = options.rows;
  s.cap = options.cap;
  s.summaries = options.summaries;
  s.summary_bytes = model.summary_bytes(s.summaries);
  OASISKV_ASSIGN_OR_RETURN(
      rig->layer_,
      DeviceLayer::Create({.shape = s, .state = {.complete = s.max_blocks, .local_tokens = 1}}));
  OASISKV_RETURN_IF_ERROR(
      Launched("summaries", FillSummaries(s.summaries, rig->layer_.memory.summaries,
                                          uint64_t{s.slots} * s.kv_heads * s.max_blocks, s.head_dim,
                                          options.seed + 17, stream)));
  OASISKV_RETURN_IF_ERROR(rig->MakeSources());
  OASISKV_ASSIGN_OR_RETURN(rig->walk_, Walk::Create(1, options.rows, model.query_columns(),
                                                    options.a, options.seed, stream));
  return rig;
}

absl::Status LayerRig::MakeSources() {
  std::vector<uint64_t> frames;
  for (uint32_t sequence = 0; sequence < pool_->sequences(); ++sequence) {
    for (uint32_t b = 0; b < pool_->blocks(); ++b) {
      frames.push_back(reinterpret_cast<uint64_t>(pool_->Frame(sequence, b)));
    }
  }
  OASISKV_ASSIGN_OR_RETURN(frames_, DeviceArray<uint64_t>::Of(frames));
  std::vector<gpu::HeadSource> sources;
  for (uint32_t slot = 0; slot < layer_.shape.slots; ++slot) {
    for (uint32_t head = 0; head < layer_.shape.kv_heads; ++head) {
      gpu::HeadSource source;
      source.frames = frames_.data() + uint64_t{slot % pool_->sequences()} * pool_->blocks();
      source.entry_offset = uint64_t{head} * layer_.shape.entry_bytes;
      sources.push_back(source);
    }
  }
  return Upload(sources, layer_.sources);
}

absl::Status LayerRig::Score() {
  return Launched("score",
                  gpu::ScoreTopK(layer_.shape, layer_.memory, layer_.rows, walk_.DraftsOfLayer(0),
                                 gpu::QueryType::kBFloat16, model_.query_columns(), stream_));
}

absl::StatusOr<std::vector<int32_t>> LayerRig::Predicted() {
  OASISKV_CUDA_RETURN(cudaStreamSynchronize(stream_));
  const gpu::Shape& s = layer_.shape;
  return Download(layer_.memory.predicted, uint64_t{s.slots} * s.kv_heads * s.resident);
}

absl::StatusOr<double> LayerRig::Churn(float a, uint32_t steps) {
  walk_.set_a(a);
  std::vector<int32_t> before;
  uint64_t changed = 0;
  for (uint32_t step = 0; step <= steps; ++step) {
    OASISKV_RETURN_IF_ERROR(walk_.Advance(stream_));
    OASISKV_RETURN_IF_ERROR(Score());
    OASISKV_ASSIGN_OR_RETURN(std::vector<int32_t> now, Predicted());
    for (size_t first = 0; step > 0 && first < now.size(); first += layer_.shape.resident) {
      const auto begin = before.begin() + static_cast<std::ptrdiff_t>(first);
      const std::unordered_set<int32_t> old(begin, begin + layer_.shape.resident);
      for (uint32_t i = 0; i < layer_.shape.resident; ++i) changed += !old.contains(now[first + i]);
    }
    before = std::move(now);
  }
  return static_cast<double>(changed) /
         (static_cast<double>(steps) * layer_.shape.slots * layer_.shape.kv_heads);
}

absl::StatusOr<LayerStageSeconds> LayerRig::StageSeconds(uint32_t warmup, uint32_t steps) {
  std::array<cuda::Event, 4> marks;
  for (cuda::Event& mark : marks) {
    OASISKV_ASSIGN_OR_RETURN(mark, cuda::Event::Create(cuda::Event::Timing::kOn));
  }
  const auto mark = [&](size_t i) -> absl::Status {
    OASISKV_CUDA_RETURN(cudaEventRecord(marks[i].get(), stream_));
    return absl::OkStatus();
  };
  std::vector<double> score, select, gather;
  const DeviceLayer& l = layer_;
  gpu::ErrorWord* const error = &layer_.error();
  const gpu::GatherOptions grid{options_.grid.ctas, options_.grid.threads, options_.grid.loads};
  for (uint32_t step = 0; step < warmup + steps; ++step) {
    OASISKV_RETURN_IF_ERROR(walk_.Advance(stream_));
    OASISKV_RETURN_IF_ERROR(mark(0));
    OASISKV_RETURN_IF_ERROR(Score());
    OASISKV_RETURN_IF_ERROR(mark(1));
    OASISKV_RETURN_IF_ERROR(
        Launched("select", gpu::Select(l.shape, l.memory, l.rows, /*predicts=*/true, options_.cap,
                                       l.plan, l.counters, stream_)));
    OASISKV_RETURN_IF_ERROR(mark(2));
    OASISKV_RETURN_IF_ERROR(Launched(
        "gather", gpu::Gather(l.shape, 0, l.memory, l.plan, l.sources, grid, error, stream_)));
    OASISKV_RETURN_IF_ERROR(Launched("commit", gpu::Commit(l.shape, 0, l.memory, l.rows, l.plan,
                                                           l.sources, l.counters, error, stream_)));
    OASISKV_RETURN_IF_ERROR(mark(3));
    OASISKV_CUDA_RETURN(cudaStreamSynchronize(stream_));
    if (step < warmup) continue;
    for (auto& [seconds, i] : {std::pair{&score, 0u}, {&select, 1u}, {&gather, 2u}}) {
      OASISKV_ASSIGN_OR_RETURN(const double one, SecondsBetween(marks[i], marks[i + 1]));
      seconds->push_back(one);
    }
  }
  if (error->code != 0) {
    return MakeError(
        ErrorCode::kInternal,
        absl::StrFormat("a layer driven by itself: error %d of slot %d", error->code, error->slot));
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
