#include "tests/gpu/gpu_inputs.h"

#include <utility>

#include "gtest/gtest.h"
#include "tests/support/narrow.h"

namespace oasiskv::gpu_test {
namespace {

constexpr uint64_t kGap = 8;  // elements between rows of 16-bit queries

}  // namespace

Inputs::Inputs(const WorkingSetOptions& options, GpuQueryType type)
    : type_(type),
      layers_(options.geometry.layers),
      rows_(options.max_requests),
      row_queries_(uint64_t{options.query_heads} * options.geometry.head_dim),
      queries_each_(rows_ * row_queries_),
      lists_each_(uint64_t{rows_} * options.geometry.kv_heads * kLongestList),
      row_bytes_(uint64_t{options.geometry.kv_heads} * options.geometry.key_bytes()),
      token_bytes_(rows_ * row_bytes_) {
  const auto pinned = [&](uint64_t bytes) {
    auto buffer = cuda::PinnedBuffer::Create(layers_ * bytes, "a test");
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return *std::move(buffer);
  };
  queries_ = pinned(queries_each_ * sizeof(float));
  truth_ = pinned(queries_each_ * sizeof(float));
  if (type_ != GpuQueryType::kFloat32) {
    narrow_queries_ = pinned(rows_ * (row_queries_ + kGap) * sizeof(uint16_t));
    narrow_truth_ = pinned(rows_ * (row_queries_ + kGap) * sizeof(uint16_t));
  }
  lists_ = pinned(lists_each_ * sizeof(int32_t));
  keys_ = pinned(token_bytes_);
  values_ = pinned(token_bytes_);
}

void Inputs::Fill(std::mt19937_64* rng) {
  const bool narrow = type_ != GpuQueryType::kFloat32;
  const auto number = [&] {
    const int whole = static_cast<int>((*rng)() % (narrow ? 121 : 9)) - (narrow ? 60 : 4);
    return static_cast<float>(whole) / (narrow ? 8.0f : 1.0f);
  };
  for (uint64_t i = 0; i < layers_ * queries_each_; ++i) {
    queries(0)[i] = number();
    truth(0)[i] = number();
  }
  if (!narrow) return;
  Narrow(queries_, narrow_queries_);
  Narrow(truth_, narrow_truth_);
}

void Inputs::Narrow(const cuda::PinnedBuffer& from, const cuda::PinnedBuffer& to) const {
  const uint64_t stride = row_queries_ + kGap;
  const ElementType type =
      type_ == GpuQueryType::kBFloat16 ? ElementType::kBFloat16 : ElementType::kFloat16;
  for (uint64_t row = 0; row < uint64_t{layers_} * rows_; ++row) {
    for (uint64_t i = 0; i < stride; ++i) {
      // A kernel that takes the gap for queries ranks other blocks.
      to.As<uint16_t>()[row * stride + i] =
          NarrowBits(type, i < row_queries_ ? from.As<float>()[row * row_queries_ + i] : 1024.0f);
    }
  }
}

const void* Inputs::gpu_queries(uint32_t layer) const {
  if (type_ == GpuQueryType::kFloat32) return queries(layer);
  return narrow_queries_.As<uint16_t>() + layer * rows_ * gpu_row_stride();
}

const void* Inputs::gpu_truth(uint32_t layer) const {
  if (type_ == GpuQueryType::kFloat32) return truth(layer);
  return narrow_truth_.As<uint16_t>() + layer * rows_ * gpu_row_stride();
}

int64_t Inputs::gpu_row_stride() const {
  return static_cast<int64_t>(row_queries_ + (type_ == GpuQueryType::kFloat32 ? 0 : kGap));
}

}  // namespace oasiskv::gpu_test
