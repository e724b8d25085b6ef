// One layer of a working set in GPU memory with its sources in pinned host memory, and a mirror of
// its page pool on the host, for tests of the transfer kernels.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "client/working_set/cuda/kernels/kernels.h"
#include "client/working_set/cuda/kernels/layout.h"
#include "common/cuda/handles.h"
#include "tools/bench/rig/device.h"
#include "tools/bench/rig/device_layer.h"

namespace oasiskv::gpu_test {

// Use first in a test: names what is missing.
#define OASISKV_NEEDS_GPU()                                                     \
  do {                                                                          \
    int devices = 0;                                                            \
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)            \
      GTEST_SKIP() << "needs an NVIDIA GPU and its driver; there is none here"; \
  } while (false)

#define ASSERT_LAUNCHED(call) ASSERT_STREQ((call), nullptr)
#define ASSERT_CUDA(call) ASSERT_EQ((call), cudaSuccess)

// Thread contract: one thread. Device memory with its host copy.
template <typename T>
class Array {
 public:
  Array() = default;
  // Memory of its own.
  explicit Array(size_t size, T value = T()) : host(size, value) {
    auto made = bench::DeviceArray<T>::Zeroed(size);
    EXPECT_TRUE(made.ok()) << made.status();
    if (made.ok()) own_ = *std::move(made);
    device_ = own_.data();
    Upload();
  }
  // Memory of a layer's, which outlives it.
  static Array Of(const T* device, size_t size, T value = T()) {
    Array array;
    array.host.assign(size, value);
    array.device_ = const_cast<T*>(device);
    array.Upload();
    return array;
  }
  T* device() const { return device_; }
  void Upload() { EXPECT_EQ(bench::Upload(host, device_), absl::OkStatus()); }
  // Of what the kernels before made of it.
  std::vector<T> Download() const {
    auto now = bench::Download(device_, host.size());
    EXPECT_TRUE(now.ok()) << now.status();
    return now.ok() ? *std::move(now) : host;
  }
  std::vector<T> host;

 private:
  T* device_ = nullptr;
  bench::DeviceArray<T> own_;
};

// EXPECTs that it can be made.
inline bench::DeviceLayer MakeLayer(const bench::DeviceLayerOptions& options) {
  auto layer = bench::DeviceLayer::Create(options);
  EXPECT_TRUE(layer.ok()) << layer.status();
  return layer.ok() ? *std::move(layer) : bench::DeviceLayer();
}

enum class PageLayout { kHnd, kNhd, kHndTogether, kNhdTogether, kEntries };
inline constexpr PageLayout kPageLayouts[] = {PageLayout::kHnd, PageLayout::kNhd,
                                              PageLayout::kHndTogether, PageLayout::kNhdTogether,
                                              PageLayout::kEntries};

struct RigOptions {
  uint32_t layers = 3, layer = 1;
  uint32_t kv_heads = 4;
  uint32_t head_dim = 64;
  uint32_t block_tokens = 16;
  gpu::Element element = gpu::Element::kBFloat16;
  SummaryType summaries = SummaryType::kAsKeys;
  bool latent = false;
  uint32_t resident = 8;
  uint32_t max_blocks = 40;
  uint32_t slots = 5;
  uint32_t max_rows = 8;
  uint32_t cap = 3;
  PageLayout layout = PageLayout::kHnd;
  bool table = false;
  bool frame_per_layer = false;
  uint64_t seed = 1;
};

// Thread contract: one thread. Every frame holds random bytes, those of slot s and block b at
// Frame(s, b); all frames have the layout of Geometry.
class Rig {
 public:
  explicit Rig(const RigOptions& options);

  // The address and the bytes of an entry in its frame.
  std::byte* Frame(uint32_t slot, uint32_t block);
  std::byte* Entry(uint32_t slot, uint32_t head, uint32_t block);
  std::byte* Summary(uint32_t slot, uint32_t head, uint32_t block);
  uint64_t summaries_offset() const {
    return uint64_t{shape.layers} * shape.kv_heads * shape.entry_bytes;
  }
  uint64_t& grant_word(uint32_t slot, uint32_t head) {
    return words_.As<uint64_t>()[slot * shape.kv_heads + head];
  }
  gpu::ErrorWord& error() { return device_.error(); }

  // The contiguous entry that page `page` holds in `pool_bytes`, and its opposite.
  std::vector<std::byte> PageOf(std::span<const std::byte> pool_bytes, uint32_t slot, uint32_t head,
                                uint32_t page) const;
  void SetPage(std::span<std::byte> pool_bytes, uint32_t slot, uint32_t head, uint32_t page,
               const std::byte* entry) const;
  size_t At(uint32_t slot, uint32_t head, uint32_t page) const {
    return (size_t{slot} * shape.kv_heads + head) * shape.resident + page;
  }
  // Offset in the pool of token `token` of the K (or V) half of a page.
  int64_t TokenAt(uint32_t slot, uint32_t head, uint32_t page, bool value, uint32_t token) const;

  // Items of the plan now, as Gather and Commit see them.
  std::vector<gpu::PlanItem> Items() const;
  void SetRows(std::vector<int32_t> slots);

  gpu::Shape shape;
  gpu::LayerMemory mem;
  gpu::Rows rows;
  gpu::Plan plan;
  uint32_t layer;
  std::mt19937_64 random;

  Array<std::byte> pool;
  Array<std::byte> summaries;
  Array<int32_t> map, predicted, table;
  Array<uint64_t> stamps;
  Array<gpu::SlotState> state;
  Array<gpu::SlotCounters> counters;
  Array<int32_t> row_slots;
  Array<uint32_t> row_count;
  Array<uint32_t> plan_count;
  Array<gpu::PlanItem> items;
  Array<gpu::PlanGroup> groups;
  Array<uint64_t> frames;  // [slot][layers or 1][max_blocks]
  Array<gpu::HeadSource> sources;

 private:
  uint64_t frame_bytes_;
  bool frame_per_layer_;
  int64_t value_offset_ = 0;  // of the pool's V
  bench::DeviceLayer device_;
  cuda::PinnedBuffer host_;
  cuda::PinnedBuffer words_;
};

void FillRandom(std::mt19937_64& random, std::span<std::byte> bytes);

}  // namespace oasiskv::gpu_test
