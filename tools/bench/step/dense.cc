#include "tools/bench/step/dense.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "common/cuda/handles.h"
#include "common/cuda/status.h"
#include "common/status_macros.h"
#include "tools/bench/rig/device.h"
#include "tools/bench/rig/timing.h"
#include "tools/bench/step/budget.h"
#include "tools/bench/step/kernels/attention.h"
#include "tools/bench/step/kernels/small_kernels.h"

namespace oasiskv::bench::step {
namespace {

// Thread contract: one thread.
class DenseSide {
 public:
  static absl::StatusOr<std::unique_ptr<DenseSide>> Create(const Model& model,
                                                           const Weights& weights,
                                                           const GemmLibrary& library,
                                                           const DenseOptions& options,
                                                           cudaStream_t stream);
  absl::Status Step(StageClock* clock);
  const Foreground& foreground() const { return *foreground_; }

 private:
  DenseSide(const Model& model, cudaStream_t stream) : model_(model), stream_(stream) {}

  const Model model_;
  const cudaStream_t stream_;
  std::unique_ptr<Foreground> foreground_;
  cuda::DeviceBuffer kv_, queries_, scratch_;
  DeviceArray<int32_t> table_;
  AttentionShape shape_;
  std::vector<PageLayout> pages_;
  PageSet set_;
};

absl::StatusOr<std::unique_ptr<DenseSide>> DenseSide::Create(const Model& model,
                                                             const Weights& weights,
                                                             const GemmLibrary& library,
                                                             const DenseOptions& options,
                                                             cudaStream_t stream) {
  std::unique_ptr<DenseSide> side(new DenseSide(model, stream));
  const uint32_t batch = options.batch;
  OASISKV_ASSIGN_OR_RETURN(side->foreground_,
                           Foreground::Create(model, weights, library, batch, 1, 0, stream));
  const uint64_t bytes = batch * DenseRequestBytes(model, options.context);
  OASISKV_ASSIGN_OR_RETURN(side->kv_, cuda::DeviceBuffer::Create(bytes, "the dense KV"));
  OASISKV_RETURN_IF_ERROR(
      Launched("filling the dense KV", FillNormal(side->kv_.data(), bytes / 2, 1.0f, 3, stream)));

  side->set_.blocks = options.context / Model::kBlockTokens;
  std::vector<int32_t> table(uint64_t{batch} * side->set_.blocks);
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), std::mt19937(5));
  OASISKV_ASSIGN_OR_RETURN(side->table_, DeviceArray<int32_t>::Of(table));
  side->set_.table = side->table_.data();

  const uint64_t page = uint64_t{model.kv_heads} * model.entry_bytes();
  for (uint32_t layer = 0; layer < model.layers; ++layer) {
    PageLayout p;
    p.k = side->kv_.data() + layer * table.size() * page;
    p.v = model.latent() ? p.k : p.k + model.entry_bytes() / 2;
    p.page_stride = static_cast<int64_t>(page);
    p.head_stride = model.entry_bytes();
    p.token_stride = int64_t{model.head_dim} * Model::kElementBytes;
    side->pages_.push_back(p);
  }

  OASISKV_ASSIGN_OR_RETURN(const uint32_t sms, Multiprocessors());
  AttentionShape& s = side->shape_;
  s.max_rows = batch;
  s.kv_heads = model.kv_heads;
  s.group = model.group();
  s.query_rows = 1;
  s.head_dim = model.head_dim;
  s.value_dim = model.value_dim();
  s.splits = ChooseSplits(batch, model.kv_heads, side->set_.blocks, sms);
  s.scale = 1.0f / std::sqrt(static_cast<float>(model.head_dim));
  OASISKV_ASSIGN_OR_RETURN(
      side->scratch_, cuda::DeviceBuffer::Create(AttentionScratchBytes(s), "attention's scratch"));
  const uint64_t queries = uint64_t{batch} * model.query_columns();
  OASISKV_ASSIGN_OR_RETURN(side->queries_, cuda::DeviceBuffer::Create(2 * queries, "queries"));
  OASISKV_RETURN_IF_ERROR(
      Launched("filling queries", FillNormal(side->queries_.data(), queries, 1.0f, 4, stream)));
  OASISKV_CUDA_RETURN(cudaStreamSynchronize(stream));
  return side;
}

absl::Status DenseSide::Step(StageClock* clock) {
  for (uint32_t layer = 0; layer < model_.layers; ++layer) {
    OASISKV_RETURN_IF_ERROR(foreground_->BeforeAttention(layer, clock));
    OASISKV_RETURN_IF_ERROR(Timed(clock, Stage::kOther, stream_, [&] {
      return Launched(
          "append",
          DenseAppend(pages_[layer], set_, foreground_->keys(), foreground_->qkv_stride(),
                      shape_.max_rows, model_.kv_heads, model_.head_dim, model_.latent(), stream_));
    }));
    OASISKV_RETURN_IF_ERROR(Timed(clock, Stage::kAttention, stream_, [&] {
      return Launched("attention", Attend(shape_, pages_[layer], set_, queries_.data(),
                                          foreground_->attention(), scratch_.data(), stream_));
    }));
    OASISKV_RETURN_IF_ERROR(foreground_->AfterAttention(layer, clock));
  }
  return foreground_->Finish(clock);
}

}  // namespace

absl::StatusOr<SideResult> RunDense(const Model& model, const Weights& weights,
                                    const GemmLibrary& library, const DenseOptions& options,
                                    double hbm_rate, cudaStream_t stream) {
  OASISKV_ASSIGN_OR_RETURN(std::unique_ptr<DenseSide> side,
                           DenseSide::Create(model, weights, library, options, stream));
  SideResult result;
  result.side = "dense";
  result.batch = options.batch;
  result.request_bytes = DenseRequestBytes(model, options.context);
  result.eager = options.eager;
  result.weights_seconds = side->foreground().tuned_seconds();
  OASISKV_RETURN_IF_ERROR(side->Step(nullptr));  // outside a capture, so that modules are loaded
  Graph graph;
  if (!options.eager) {
    OASISKV_ASSIGN_OR_RETURN(graph, Graph::Capture(stream, [&] { return side->Step(nullptr); }));
    result.graph_nodes = graph.nodes();
  }
  OASISKV_RETURN_IF_ERROR(MeasureSteps(
      options.rounds, 3, stream,
      [&] { return options.eager ? side->Step(nullptr) : graph.Launch(stream); }, result));
  OASISKV_RETURN_IF_ERROR(
      MeasureStages([&](StageClock* clock) { return side->Step(clock); }, result));
  result.hbm_bytes =
      DenseStepBytes(model, options.context, options.batch, side->foreground().weight_bytes_read());
  result.bound_seconds = result.hbm_bytes / hbm_rate;
  return result;
}

}  // namespace oasiskv::bench::step
