#include "tools/bench/step/foreground.h"

#include <algorithm>

#include "common/cuda/status.h"
#include "common/status_macros.h"
#include "tools/bench/step/kernels/small_kernels.h"

namespace oasiskv::bench::step {
namespace {

constexpr float kWeightSigma = 0.02f;
constexpr uint64_t kElement = Model::kElementBytes;

struct Sizes {
  uint64_t hidden, qkv, attention, expert_in, gate_up, gated, down, logits;
  Sizes(const Model& m, uint32_t rows) {
    const uint64_t ffn_rows =
        m.experts == 0 ? rows : uint64_t{m.experts_hit(rows)} * m.rows_per_expert(rows);
    hidden = uint64_t{rows} * m.hidden * kElement;
    qkv = uint64_t{rows} * m.qkv_columns * kElement;
    attention = uint64_t{rows} * m.attention_columns() * kElement;
    expert_in = m.experts == 0 ? 0 : ffn_rows * m.hidden * kElement;
    gate_up = ffn_rows * 2 * m.ffn * kElement;
    gated = ffn_rows * m.ffn * kElement;
    down = ffn_rows * m.hidden * kElement;
    logits = uint64_t{rows} * m.vocab * kElement;
  }
  uint64_t total() const {
    return 3 * hidden + qkv + attention + expert_in + gate_up + gated + down + logits;
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Weights>> Weights::Create(const Model& model, cudaStream_t stream) {
  std::unique_ptr<Weights> weights(new Weights(model));
  OASISKV_ASSIGN_OR_RETURN(weights->data_,
                           cuda::DeviceBuffer::Create(model.weight_bytes(), "the model's weights"));
  OASISKV_RETURN_IF_ERROR(Launched(
      "filling the weights",
      FillNormal(weights->data_.data(), model.weight_bytes() / kElement, kWeightSigma, 1, stream)));
  OASISKV_CUDA_RETURN(cudaStreamSynchronize(stream));
  return weights;
}

const std::byte* Weights::Of(Part part, uint32_t layer) const {
  const uint64_t experts = std::max(1u, model_.experts), hidden = model_.hidden;
  uint64_t at = layer * model_.layer_weight_bytes();
  if (part == Part::kQkv) return data_.data() + at;
  at += hidden * model_.qkv_columns * kElement;
  if (part == Part::kOutput) return data_.data() + at;
  at += hidden * model_.output_rows * kElement;
  if (part == Part::kGateUp) return data_.data() + at;
  return data_.data() + at + experts * 2 * hidden * model_.ffn * kElement;
}

std::vector<const std::byte*> Weights::AllOf(Part part) const {
  std::vector<const std::byte*> all;
  for (uint32_t layer = 0; layer < model_.layers; ++layer) all.push_back(Of(part, layer));
  return all;
}

const std::byte* Weights::head() const {
  return data_.data() + model_.layers * model_.layer_weight_bytes();
}

uint64_t Foreground::WorkspaceBytes(const Model& model, uint32_t batch, uint32_t query_rows) {
  return Sizes(model, batch * query_rows).total() + GemmLibrary::kWorkspaceBytes;
}

absl::StatusOr<std::unique_ptr<Foreground>> Foreground::Create(
    const Model& model, const Weights& weights, const GemmLibrary& library, uint32_t batch,
    uint32_t query_rows, uint32_t processors, cudaStream_t stream) {
  std::unique_ptr<Foreground> f(new Foreground(model, weights, batch, query_rows, stream));
  const uint32_t rows = f->rows_;
  const Sizes sizes(model, rows);
  struct Want {
    cuda::DeviceBuffer& buffer;
    uint64_t bytes;
  };
  for (const Want& want :
       {Want{f->hidden_, sizes.hidden}, Want{f->normed_, sizes.hidden},
        Want{f->projected_, sizes.hidden}, Want{f->qkv_, sizes.qkv},
        Want{f->attention_, sizes.attention}, Want{f->expert_in_, sizes.expert_in},
        Want{f->gate_up_, sizes.gate_up}, Want{f->gated_, sizes.gated}, Want{f->down_, sizes.down},
        Want{f->logits_, sizes.logits}, Want{f->tokens_, rows * sizeof(int32_t)}}) {
    OASISKV_ASSIGN_OR_RETURN(want.buffer, cuda::DeviceBuffer::Create(want.bytes, "activations"));
    if (want.bytes >= 16 && want.buffer.data() != f->tokens_.data()) {
      OASISKV_RETURN_IF_ERROR(Launched(
          "filling activations",
          FillNormal(want.buffer.data(), want.bytes / kElement, 1.0f, want.bytes, stream)));
    }
  }
  using Part = Weights::Part;
  const auto tune = [&](Gemm& gemm, GemmShape shape, std::span<const std::byte* const> matrices,
                        const cuda::DeviceBuffer& x, const cuda::DeviceBuffer& y) -> absl::Status {
    shape.processors = processors;
    OASISKV_ASSIGN_OR_RETURN(gemm,
                             Gemm::Create(library, shape, matrices, x.data(), y.data(), stream));
    return absl::OkStatus();
  };
  const bool moe = model.experts != 0;
  const uint32_t experts = moe ? model.experts_hit(rows) : 1;
  const uint32_t ffn_rows = moe ? model.rows_per_expert(rows) : rows;
  OASISKV_RETURN_IF_ERROR(tune(f->qkv_gemm_,
                               {.rows = rows, .in = model.hidden, .out = model.qkv_columns},
                               weights.AllOf(Part::kQkv), f->normed_, f->qkv_));
  OASISKV_RETURN_IF_ERROR(tune(f->output_gemm_,
                               {.rows = rows,
                                .in = model.output_rows,
                                .out = model.hidden,
                                .in_stride = model.attention_columns()},
                               weights.AllOf(Part::kOutput), f->attention_, f->projected_));
  OASISKV_RETURN_IF_ERROR(
      tune(f->gate_up_gemm_,
           {.rows = ffn_rows, .in = model.hidden, .out = 2 * model.ffn, .batch = experts},
           weights.AllOf(Part::kGateUp), moe ? f->expert_in_ : f->normed_, f->gate_up_));
  OASISKV_RETURN_IF_ERROR(tune(
      f->down_gemm_, {.rows = ffn_rows, .in = model.ffn, .out = model.hidden, .batch = experts},
      weights.AllOf(Part::kDown), f->gated_, f->down_));
  const std::byte* head[] = {weights.head()};
  OASISKV_RETURN_IF_ERROR(tune(f->head_gemm_,
                               {.rows = rows, .in = model.hidden, .out = model.vocab}, head,
                               f->normed_, f->logits_));
  return f;
}

const std::byte* Foreground::keys() const {
  return qkv_.data() + (model_.qkv_columns - model_.kv_columns()) * kElement;
}

const std::byte* Foreground::values() const {
  return model_.latent() ? nullptr : keys() + model_.kv_columns() / 2 * kElement;
}

absl::Status Foreground::Product(const Gemm& gemm, const std::byte* weights, const void* x, void* y,
                                 StageClock* clock) {
  return Timed(clock, Stage::kGemm, stream_, [&] { return gemm.Run(weights, x, y, stream_); });
}

absl::Status Foreground::Norm(const void* y, StageClock* clock) {
  return Timed(clock, Stage::kOther, stream_, [&] {
    return Launched("norm",
                    AddAndNorm(hidden_.data(), y, normed_.data(), rows_, model_.hidden, stream_));
  });
}

absl::Status Foreground::BeforeAttention(uint32_t layer, StageClock* clock) {
  OASISKV_RETURN_IF_ERROR(Norm(layer > 0 ? down_.data() : nullptr, clock));
  return Product(qkv_gemm_, weights_.Of(Weights::Part::kQkv, layer), normed_.data(), qkv_.data(),
                 clock);
}

absl::Status Foreground::AfterAttention(uint32_t layer, StageClock* clock) {
  OASISKV_RETURN_IF_ERROR(Product(output_gemm_, weights_.Of(Weights::Part::kOutput, layer),
                                  attention_.data(), projected_.data(), clock));
  OASISKV_RETURN_IF_ERROR(Norm(projected_.data(), clock));
  OASISKV_RETURN_IF_ERROR(Product(gate_up_gemm_, weights_.Of(Weights::Part::kGateUp, layer),
                                  model_.experts != 0 ? expert_in_.data() : normed_.data(),
                                  gate_up_.data(), clock));
  const uint64_t ffn_rows =
      model_.experts == 0 ? rows_
                          : uint64_t{model_.experts_hit(rows_)} * model_.rows_per_expert(rows_);
  OASISKV_RETURN_IF_ERROR(Timed(clock, Stage::kOther, stream_, [&] {
    return Launched("gate times up",
                    GateTimesUp(gate_up_.data(), gated_.data(), ffn_rows, model_.ffn, stream_));
  }));
  return Product(down_gemm_, weights_.Of(Weights::Part::kDown, layer), gated_.data(), down_.data(),
                 clock);
}

absl::Status Foreground::Finish(StageClock* clock) {
  OASISKV_RETURN_IF_ERROR(Norm(down_.data(), clock));
  OASISKV_RETURN_IF_ERROR(
      Product(head_gemm_, weights_.head(), normed_.data(), logits_.data(), clock));
  return Timed(clock, Stage::kOther, stream_, [&] {
    return Launched("sampling",
                    Sample(logits_.data(), tokens_.As<int32_t>(), rows_, model_.vocab, stream_));
  });
}

uint64_t Foreground::weight_bytes_read() const {
  return model_.layers * model_.layer_weight_bytes_read(rows_) + head_gemm_.weight_bytes();
}

double Foreground::tuned_seconds() const {
  const double layer = qkv_gemm_.tuned_seconds() + output_gemm_.tuned_seconds() +
                       gate_up_gemm_.tuned_seconds() + down_gemm_.tuned_seconds();
  return model_.layers * layer + head_gemm_.tuned_seconds();
}

}  // namespace oasiskv::bench::step
