// What a decode step does besides attention and the working set: the products with the weights and
// the element-wise parts between them. The same for both sides of the comparison.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cuda/handles.h"
#include "tools/bench/step/measure.h"
#include "tools/bench/step/model/gemm.h"
#include "tools/bench/step/model/model.h"

namespace oasiskv::bench::step {

// Thread contract: immutable after Create.
//
// Random weights of the model's full size, on the current device.
class Weights {
 public:
  static absl::StatusOr<std::unique_ptr<Weights>> Create(const Model& model, cudaStream_t stream);
  enum class Part { kQkv, kOutput, kGateUp, kDown };
  const std::byte* Of(Part part, uint32_t layer) const;
  std::vector<const std::byte*> AllOf(Part part) const;
  const std::byte* head() const;
  const std::byte* begin() const { return data_.data(); }
  uint64_t bytes() const { return model_.weight_bytes(); }

 private:
  explicit Weights(const Model& model) : model_(model) {}
  const Model model_;
  cuda::DeviceBuffer data_;  // layers, LM head, embedding
};

// Thread contract: one thread; every call enqueues on the stream of Create and may be captured.
//
// Rows are [query_row][row of the batch]: tokens, then drafts.
class Foreground {
 public:
  // `batch` requests of `query_rows` rows each. Tunes the products for `processors`
  // multiprocessors (0: all).
  static absl::StatusOr<std::unique_ptr<Foreground>> Create(
      const Model& model, const Weights& weights, const GemmLibrary& library, uint32_t batch,
      uint32_t query_rows, uint32_t processors, cudaStream_t stream);
  // Up to the QKV projection. Then attention writes `attention()`.
  absl::Status BeforeAttention(uint32_t layer, StageClock* clock);
  absl::Status AfterAttention(uint32_t layer, StageClock* clock);
  // LM head and sampling.
  absl::Status Finish(StageClock* clock);

  // Keys (latents) of the first rows' tokens and their values, BF16, rows qkv_stride() elements
  // apart.
  const std::byte* keys() const;
  const std::byte* values() const;
  int64_t qkv_stride() const { return model_.qkv_columns; }
  void* attention() const { return attention_.data(); }
  // HBM bytes that one step must read of the weights.
  uint64_t weight_bytes_read() const;
  // Tuned time of all products of a step, each with nothing beside it.
  double tuned_seconds() const;
  static uint64_t WorkspaceBytes(const Model& model, uint32_t batch, uint32_t query_rows);

 private:
  Foreground(const Model& model, const Weights& weights, uint32_t batch, uint32_t query_rows,
             cudaStream_t stream)
      : model_(model), weights_(weights), rows_(batch * query_rows), stream_(stream) {}
  absl::Status Product(const Gemm& gemm, const std::byte* weights, const void* x, void* y,
                       StageClock* clock);
  absl::Status Norm(const void* y, StageClock* clock);

  const Model model_;
  const Weights& weights_;
  const uint32_t rows_;
  const cudaStream_t stream_;
  cuda::DeviceBuffer hidden_, normed_, qkv_, attention_, projected_, expert_in_, gate_up_, gated_,
      down_, logits_, tokens_;
  Gemm qkv_gemm_, output_gemm_, gate_up_gemm_, down_gemm_, head_gemm_;
};

}  // namespace oasiskv::bench::step
