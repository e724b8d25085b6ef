// What an engine hands a working set in one step, for the backend on the CPU and the one on the
// GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>

#include "common/cuda/handles.h"
#include "oasiskv/gpu_working_set.h"

namespace oasiskv::gpu_test {

inline constexpr uint32_t kLongestList = 300;  // places of a top-K list

// Thread contract: one thread.
//
// In pinned memory that the GPU reads in place. Queries lie as floats for the CPU, rows following
// each other, and in `type` for the GPU, with a gap after each row where the type has 16 bits.
class Inputs {
 public:
  explicit Inputs(const WorkingSetOptions& options, GpuQueryType type = GpuQueryType::kFloat32);

  // Random queries. Whole numbers as float32, eighths in 16 bits: all types hold them, and sums of
  // their products with small whole numbers are exact.
  void Fill(std::mt19937_64* rng);

  float* queries(uint32_t layer) const { return queries_.As<float>() + layer * queries_each_; }
  float* truth(uint32_t layer) const { return truth_.As<float>() + layer * queries_each_; }
  const void* gpu_queries(uint32_t layer) const;
  const void* gpu_truth(uint32_t layer) const;
  int64_t gpu_row_stride() const;  // of the two above, in elements
  GpuQueryType type() const { return type_; }

  // [row][head][k] of each layer, for lists of up to kLongestList places.
  int32_t* lists(uint32_t layer) const { return lists_.As<int32_t>() + layer * lists_each_; }
  std::byte* keys(uint32_t layer) const { return keys_.data() + layer * token_bytes_; }
  std::byte* values(uint32_t layer) const { return values_.data() + layer * token_bytes_; }
  uint64_t row_bytes() const { return row_bytes_; }

 private:
  void Narrow(const cuda::PinnedBuffer& from, const cuda::PinnedBuffer& to) const;

  const GpuQueryType type_;
  const uint32_t layers_, rows_;
  const uint64_t row_queries_, queries_each_, lists_each_, row_bytes_, token_bytes_;
  cuda::PinnedBuffer queries_, truth_, narrow_queries_, narrow_truth_, lists_, keys_, values_;
};

}  // namespace oasiskv::gpu_test
