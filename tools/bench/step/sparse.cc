#include "tools/bench/step/sparse.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "common/cuda/handles.h"
#include "common/cuda/status.h"
#include "common/status_macros.h"
#include "oasiskv/gpu_working_set.h"
#include "tools/bench/rig/hbm_reader.h"
#include "tools/bench/rig/timing.h"
#include "tools/bench/step/budget.h"
#include "tools/bench/step/kernels/attention.h"
#include "tools/bench/step/kernels/small_kernels.h"
#include "tools/bench/step/layer_rig.h"
#include "tools/bench/step/walk.h"

namespace oasiskv::bench::step {
namespace {

constexpr uint32_t kQueryRows = 2;  // token and draft

static_assert(sizeof(gpu::SlotState) == sizeof(GpuSlotState));

// Thread contract: one thread.
class SparseSide {
 public:
  static absl::StatusOr<std::unique_ptr<SparseSide>> Create(
      const Model& model, const Weights& weights, const GemmLibrary& library,
      const std::shared_ptr<const HostPool>& pool, const SparseOptions& options,
      cudaStream_t stream);
  absl::Status Step(StageClock* clock);
  // The same without the working set.
  absl::Status StepOfForeground();
  GpuWorkingSet& working_set() { return *working_set_; }
  // Of the step: the caller's, or the working set's foreground.
  cudaStream_t stream() const { return stream_; }
  const Foreground& foreground() const { return *foreground_; }

 private:
  SparseSide(const Model& model, const SparseOptions& options, cudaStream_t stream)
      : model_(model), options_(options), stream_(stream) {}
  absl::Status MakeWorkingSet(const std::shared_ptr<const HostPool>& pool);
  absl::Status MakeAttention();
  absl::Status Attention(uint32_t layer, StageClock* clock);
  absl::Status Predict(uint32_t layer, const std::byte* queries);
  absl::Status ReadDraft(StageClock* clock);

  const Model model_;
  const SparseOptions options_;
  cudaStream_t stream_;
  uint32_t processors_ = 0;  // of the step
  std::unique_ptr<Foreground> foreground_;
  std::unique_ptr<GpuWorkingSet> working_set_;
  Walk walk_;
  cuda::DeviceBuffer scratch_, draft_, sink_;
  AttentionShape shape_;
  std::vector<PageLayout> pages_;
  std::vector<PageSet> sets_;
};

absl::StatusOr<std::unique_ptr<SparseSide>> SparseSide::Create(
    const Model& model, const Weights& weights, const GemmLibrary& library,
    const std::shared_ptr<const HostPool>& pool, const SparseOptions& options,
    cudaStream_t stream) {
  std::unique_ptr<SparseSide> side(new SparseSide(model, options, stream));
  OASISKV_RETURN_IF_ERROR(side->MakeWorkingSet(pool));
  stream = side->stream_;
  OASISKV_ASSIGN_OR_RETURN(side->foreground_,
                           Foreground::Create(model, weights, library, options.batch, kQueryRows,
                                              side->processors_, stream));
  OASISKV_ASSIGN_OR_RETURN(
      side->walk_,
      Walk::Create(model.layers, options.batch, model.query_columns(), options.walk, 11, stream));
  const uint64_t draft = uint64_t{options.batch} * options.context * model.draft_bytes_per_token;
  OASISKV_ASSIGN_OR_RETURN(side->draft_, cuda::DeviceBuffer::Create(draft, "the draft model's KV"));
  OASISKV_RETURN_IF_ERROR(
      Launched("filling draft KV", FillNormal(side->draft_.data(), draft / 2, 1.0f, 6, stream)));
  OASISKV_ASSIGN_OR_RETURN(side->sink_, cuda::DeviceBuffer::Create(16, "a sink"));
  OASISKV_RETURN_IF_ERROR(side->MakeAttention());
  OASISKV_CUDA_RETURN(cudaStreamSynchronize(stream));
  return side;
}

absl::Status SparseSide::MakeWorkingSet(const std::shared_ptr<const HostPool>& pool) {
  const uint32_t steps =
      options_.warmup + options_.rounds.rounds * options_.rounds.steps + kStageSteps + 16;
  int least = 0, greatest = 0;
  OASISKV_CUDA_RETURN(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  GpuWorkingSetOptions o;
  o.base.geometry = pool->geometry();
  o.base.query_heads = model_.query_heads;
  o.base.resident_blocks = options_.pages();
  o.base.ranked_blocks = options_.resident;
  o.base.fetch_ratio = options_.ratio;
  o.base.summaries = options_.summaries;
  o.base.max_requests = options_.batch;
  o.base.max_blocks = pool->blocks() + steps / Model::kBlockTokens + 2;
  OASISKV_CUDA_RETURN(cudaGetDevice(&o.device));
  o.max_rows = options_.batch;
  o.max_new_tokens = steps;
  o.remote_sources = false;
  o.gather_ctas = options_.grid.ctas;
  o.gather_threads = options_.grid.threads;
  o.gather_loads = options_.grid.loads;
  // Above the step's: its CTAs go first wherever a multiprocessor has room, so that the link does
  // not wait for the end of a large grid.
  o.priority = greatest;
  if (options_.predict_behind) o.predict_priority = least;  // the step has the one before it
  o.predict_processors = options_.predict_processors;
  OASISKV_ASSIGN_OR_RETURN(working_set_, GpuWorkingSet::Create(o));
  const GpuForeground left = working_set_->Foreground();
  if (left.stream != nullptr) stream_ = static_cast<cudaStream_t>(left.stream);
  processors_ = left.processors;
  std::vector<RequestSlot> slots;
  for (uint32_t r = 0; r < options_.batch; ++r) {
    // Not all requests complete a block in the same step.
    const uint64_t tokens = uint64_t{options_.context} - 1 - r % Model::kBlockTokens;
    OASISKV_ASSIGN_OR_RETURN(const RequestSlot slot,
                             working_set_->Admit(MakePoolSource(pool, r, tokens)));
    slots.push_back(slot);
  }
  return working_set_->SetRows(slots, stream_);
}

absl::Status SparseSide::MakeAttention() {
  shape_.max_rows = options_.batch;
  shape_.kv_heads = model_.kv_heads;
  shape_.group = model_.group();
  shape_.query_rows = kQueryRows;
  shape_.head_dim = model_.head_dim;
  shape_.value_dim = model_.value_dim();
  shape_.splits = ChooseSplits(options_.batch, model_.kv_heads, options_.pages() + 1, processors_);
  shape_.scale = 1.0f / std::sqrt(static_cast<float>(model_.head_dim));
  OASISKV_ASSIGN_OR_RETURN(
      scratch_, cuda::DeviceBuffer::Create(AttentionScratchBytes(shape_), "attention's scratch"));
  const GpuRows rows = working_set_->Rows();
  for (uint32_t layer = 0; layer < model_.layers; ++layer) {
    OASISKV_ASSIGN_OR_RETURN(const GpuLayerView view, working_set_->View(LayerIndex(layer)));
    PageLayout p;
    p.k = static_cast<const std::byte*>(view.pages.k);
    p.v = model_.latent() ? p.k : static_cast<const std::byte*>(view.pages.v);
    p.page_stride = view.pages.page_stride;
    p.head_stride = view.pages.head_stride;
    p.token_stride = view.pages.token_stride;
    pages_.push_back(p);
    PageSet set;
    set.map = view.map;
    set.state = reinterpret_cast<const gpu::SlotState*>(view.state);
    set.slots = rows.slots;
    set.count = rows.count;
    set.table = view.pages.table;
    set.resident = options_.pages();
    sets_.push_back(set);
  }
  return absl::OkStatus();
}

absl::Status SparseSide::Attention(uint32_t layer, StageClock* clock) {
  return Timed(clock, Stage::kAttention, stream_, [&] {
    return Launched("attention", Attend(shape_, pages_[layer], sets_[layer], walk_.OfLayer(layer),
                                        foreground_->attention(), scratch_.data(), stream_));
  });
}

// The draft model's forward pass, of which only what it costs HBM is modelled.
absl::Status SparseSide::ReadDraft(StageClock* clock) {
  const uint64_t bytes =
      uint64_t{options_.batch} * options_.context * model_.draft_bytes_per_token / 16 * 16;
  if (bytes == 0) return absl::OkStatus();
  return Timed(clock, Stage::kOther, stream_, [&] {
    return Launched("draft", ReadHbm(draft_.data(), bytes, sink_.As<uint32_t>(), 4 * processors_,
                                     ReadOrder::kSideBySide, stream_));
  });
}

// Predicts a layer's next step and lets its transfer go.
absl::Status SparseSide::Predict(uint32_t layer, const std::byte* queries) {
  return working_set_->Submit(LayerIndex(layer), queries, GpuQueryType::kBFloat16,
                              model_.query_columns(), stream_);
}

absl::Status SparseSide::Step(StageClock* clock) {
  // The last layer's prediction is made here and not at the end of the step before: a graph's
  // transfers end with it, and the link would idle until the first layer's attention is done. What
  // was the draft row then is the token row now.
  const uint32_t last = options_.last_layer_first ? model_.layers - 1 : model_.layers;
  if (last < model_.layers) {
    OASISKV_RETURN_IF_ERROR(Predict(last, walk_.OfLayer(last)));
    OASISKV_RETURN_IF_ERROR(working_set_->AttentionDone(LayerIndex(last), stream_));
  }
  for (uint32_t layer = 0; layer < model_.layers; ++layer) {
    const LayerIndex at(layer);
    OASISKV_RETURN_IF_ERROR(foreground_->BeforeAttention(layer, clock));
    OASISKV_RETURN_IF_ERROR(Timed(clock, Stage::kExposedWait, stream_,
                                  [&] { return working_set_->Wait(at, stream_); }));
    OASISKV_RETURN_IF_ERROR(Timed(clock, Stage::kOther, stream_, [&] {
      return working_set_->Append(at, foreground_->keys(), foreground_->values(),
                                  foreground_->qkv_stride(), stream_);
    }));
    // On multiprocessors of their own scores run beside the products that follow. Elsewhere they
    // delay them, and beginning early costs nothing.
    const bool late = options_.predict_processors != 0;
    if (layer != last && !late) {
      OASISKV_RETURN_IF_ERROR(Predict(layer, walk_.DraftsOfLayer(layer)));
    }
    OASISKV_RETURN_IF_ERROR(Attention(layer, clock));
    if (layer != last) {
      if (late) OASISKV_RETURN_IF_ERROR(Predict(layer, walk_.DraftsOfLayer(layer)));
      OASISKV_RETURN_IF_ERROR(working_set_->AttentionDone(at, stream_));
    }
    OASISKV_RETURN_IF_ERROR(foreground_->AfterAttention(layer, clock));
  }
  OASISKV_RETURN_IF_ERROR(foreground_->Finish(clock));
  OASISKV_RETURN_IF_ERROR(ReadDraft(clock));
  // Here, and not before layer 0, where the link would idle meanwhile.
  OASISKV_RETURN_IF_ERROR(
      Timed(clock, Stage::kOther, stream_, [&] { return walk_.Advance(stream_); }));
  return working_set_->EndStep(stream_);
}

absl::Status SparseSide::StepOfForeground() {
  for (uint32_t layer = 0; layer < model_.layers; ++layer) {
    OASISKV_RETURN_IF_ERROR(foreground_->BeforeAttention(layer, nullptr));
    OASISKV_RETURN_IF_ERROR(Attention(layer, nullptr));
    OASISKV_RETURN_IF_ERROR(foreground_->AfterAttention(layer, nullptr));
  }
  OASISKV_RETURN_IF_ERROR(foreground_->Finish(nullptr));
  OASISKV_RETURN_IF_ERROR(ReadDraft(nullptr));
  return walk_.Advance(stream_);
}

}  // namespace

absl::StatusOr<SideResult> RunSparse(const Model& model, const Weights& weights,
                                     const GemmLibrary& library,
                                     const std::shared_ptr<const HostPool>& pool,
                                     const SparseOptions& options, const Ceilings& ceilings,
                                     cudaStream_t stream) {
  SideResult result;
  result.side = "sparse";
  result.batch = options.batch;
  result.ratio = options.ratio;
  result.spare = options.spare;
  result.request_bytes =
      SparseRequestBytes(model, options.context, options.pages(), options.summaries);
  result.eager = options.eager;
  uint32_t cap = 0;
  {
    OASISKV_ASSIGN_OR_RETURN(std::unique_ptr<SparseSide> side,
                             SparseSide::Create(model, weights, library, pool, options, stream));
    GpuWorkingSet& ws = side->working_set();
    const cudaStream_t step_stream = side->stream();
    cap = ws.fetch_cap();
    result.weights_seconds = side->foreground().tuned_seconds();
    // Outside a capture, so that modules are loaded. A graph's steps do not wait for the transfers
    // of a step that was none.
    OASISKV_RETURN_IF_ERROR(side->Step(nullptr));
    OASISKV_CUDA_RETURN(cudaDeviceSynchronize());
    Graph graph;
    if (!options.eager) {
      OASISKV_ASSIGN_OR_RETURN(graph,
                               Graph::Capture(step_stream, [&] { return side->Step(nullptr); }));
      result.graph_nodes = graph.nodes();
    }
    const auto step = [&] {
      return options.eager ? side->Step(nullptr) : graph.Launch(step_stream);
    };
    for (uint32_t i = 0; i < options.warmup; ++i) OASISKV_RETURN_IF_ERROR(step());
    OASISKV_CUDA_RETURN(cudaDeviceSynchronize());
    OASISKV_ASSIGN_OR_RETURN(const WorkingSetStats before, ws.Stats());
    OASISKV_RETURN_IF_ERROR(MeasureSteps(options.rounds, 0, step_stream, step, result));
    OASISKV_CUDA_RETURN(cudaDeviceSynchronize());
    OASISKV_ASSIGN_OR_RETURN(const WorkingSetStats after, ws.Stats());
    OASISKV_RETURN_IF_ERROR(ws.Error());

    const double steps = options.rounds.rounds * options.rounds.steps;
    const double heads = static_cast<double>(options.batch) * model.layers * model.kv_heads;
    const double fetched = static_cast<double>(after.admitted - before.admitted) / steps;
    result.fetched = fetched / heads;
    result.refused =
        static_cast<double>(after.refused_by_cap - before.refused_by_cap) / steps / heads;
    result.link_bytes = fetched * model.entry_bytes();
    result.hbm_bytes =
        SparseStepBytes(model, options.context, options.pages(), options.summaries, options.batch,
                        side->foreground().weight_bytes_read(), result.link_bytes);
    result.bound_seconds =
        std::max(result.hbm_bytes / ceilings.hbm_read, result.link_bytes / ceilings.gather_alone);

    OASISKV_RETURN_IF_ERROR(
        MeasureStages([&](StageClock* clock) { return side->Step(clock); }, result));
    OASISKV_CUDA_RETURN(cudaDeviceSynchronize());
    OASISKV_ASSIGN_OR_RETURN(Graph alone,
                             Graph::Capture(step_stream, [&] { return side->StepOfForeground(); }));
    OASISKV_ASSIGN_OR_RETURN(result.foreground_seconds, MedianStepSeconds(5, step_stream, [&] {
                               return alone.Launch(step_stream);
                             }));
    OASISKV_RETURN_IF_ERROR(ws.Error());
  }
  LayerRigOptions rig_options{.rows = options.batch,
                              .resident = options.pages(),
                              .ranked = options.resident,
                              .cap = cap,
                              .summaries = options.summaries,
                              .grid = options.grid,
                              .a = options.walk,
                              .seed = 23};
  OASISKV_ASSIGN_OR_RETURN(std::unique_ptr<LayerRig> rig,
                           LayerRig::Create(model, pool, rig_options, stream));
  OASISKV_ASSIGN_OR_RETURN(const LayerStageSeconds one, rig->StageSeconds(options.warmup, 15));
  auto& stages = result.stages.seconds;
  stages[static_cast<size_t>(Stage::kScore)] = one.score * model.layers;
  stages[static_cast<size_t>(Stage::kSelect)] = one.select * model.layers;
  stages[static_cast<size_t>(Stage::kGather)] = one.gather * model.layers;
  return result;
}

}  // namespace oasiskv::bench::step
