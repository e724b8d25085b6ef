// LoadTopK, CompareTopK and BuildSummaries against plain code.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "client/selection/float8.h"
#include "client/selection/summary.h"
#include "tests/gpu/score_rig.h"

namespace oasiskv::gpu_test {
namespace {

// What SubmitTopK of the cpu backend takes of a list.
void Take(const int32_t* list, uint32_t k, int32_t candidates, uint32_t resident, int32_t* out) {
  std::fill_n(out, resident, -1);
  std::set<int32_t> taken;
  for (uint32_t i = 0; i < k && taken.size() < resident; ++i) {
    if (list[i] < 0 || list[i] >= candidates) continue;
    if (taken.insert(list[i]).second) out[taken.size() - 1] = list[i];
  }
}

TEST(TopKKernelTest, TakesAListOfAnyLength) {
  OASISKV_NEEDS_GPU();
  std::mt19937_64 random(1);
  for (uint32_t k : {0u, 1u, 16u, 255u, 256u, 257u, 2000u}) {
    for (uint32_t resident : {1u, 16u, 300u}) {
      ScoreOptions options;
      options.kv_heads = 3;
      options.head_dim = 8;
      options.resident = resident;
      options.max_blocks = 500;
      ScoreRig rig(options);
      rig.SetBlocks(0, 499, 16);
      rig.SetBlocks(1, 100, 16);
      rig.SetBlocks(2, 100, 7);
      rig.SetBlocks(3, 0, 7);
      rig.SetRows({2, 0, 3, 1}, 3);
      Array<int32_t> lists(size_t{options.max_rows} * options.kv_heads * k);
      for (int32_t& block : lists.host) block = static_cast<int32_t>(random() % 520) - 10;
      lists.Upload();
      ASSERT_LAUNCHED(gpu::LoadTopK(rig.shape, rig.mem, rig.rows, lists.device(), k, nullptr));
      ASSERT_CUDA(cudaDeviceSynchronize());
      std::vector<int32_t> expected(rig.predicted.host.size(), kUntouched);
      for (uint32_t row = 0; row < 3; ++row) {
        const uint32_t slot = rig.row_slots.host[row];
        const gpu::SlotState& state = rig.state.host[slot];
        const int32_t candidates = state.complete + (state.local_tokens == 16 ? 1 : 0);
        for (uint32_t h = 0; h < options.kv_heads; ++h) {
          Take(lists.host.data() + (size_t{row} * options.kv_heads + h) * k, k, candidates,
               resident, expected.data() + (size_t{slot} * options.kv_heads + h) * resident);
        }
      }
      EXPECT_EQ(rig.Predicted(), expected) << "k " << k << ", K " << resident;
    }
  }
}

TEST(TopKKernelTest, CountsWhatPredictionAndTruthShare) {
  OASISKV_NEEDS_GPU();
  std::mt19937_64 random(2);
  ScoreOptions options;
  options.kv_heads = 2;
  options.head_dim = 8;
  options.resident = 150;
  options.max_blocks = 400;
  ScoreRig rig(options);
  rig.SetRows({3, 1, 0, 2}, 3);
  Array<int32_t> truth(rig.predicted.host.size(), -1);
  std::vector<int32_t> blocks(options.max_blocks);
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<int32_t>(i);
  std::vector<gpu::SlotCounters> expected(options.slots);
  for (uint32_t list = 0; list < options.slots * options.kv_heads; ++list) {
    const uint32_t slot = list / options.kv_heads;
    std::vector<std::set<int32_t>> sets;
    for (Array<int32_t>* lists : {&rig.predicted, &truth}) {
      std::shuffle(blocks.begin(), blocks.end(), random);
      const uint32_t n = list == 2 ? 0 : random() % (options.resident + 1);
      int32_t* const to = lists->host.data() + size_t{list} * options.resident;
      std::fill_n(to, options.resident, -1);
      std::copy_n(blocks.begin(), n, to);
      sets.emplace_back(to, to + n);
    }
    if (sets[1].empty() || slot == 2) continue;  // slot 2 is not an active row
    ++expected[slot].agreement_samples;
    expected[slot].agreement_of += sets[1].size();
    for (int32_t block : sets[1]) expected[slot].agreement_common += sets[0].count(block);
  }
  rig.predicted.Upload();
  truth.Upload();
  Array<gpu::SlotCounters> counters(options.slots);
  ASSERT_LAUNCHED(
      gpu::CompareTopK(rig.shape, rig.mem, rig.rows, truth.device(), counters.device(), nullptr));
  ASSERT_CUDA(cudaDeviceSynchronize());
  const auto found = counters.Download();
  for (uint32_t slot = 0; slot < options.slots; ++slot) {
    EXPECT_EQ(found[slot].agreement_samples, expected[slot].agreement_samples) << slot;
    EXPECT_EQ(found[slot].agreement_common, expected[slot].agreement_common) << slot;
    EXPECT_EQ(found[slot].agreement_of, expected[slot].agreement_of) << slot;
  }
}

struct SummaryCase {
  gpu::Element element;
  Keys keys;
  SummaryType summaries;
};

void ExpectSummaries(const SummaryCase& c, std::mt19937_64& random) {
  ScoreOptions options;
  options.element = c.element;
  options.kv_heads = 3;
  options.head_dim = c.keys == Keys::kSpecial ? 576 : 80;
  options.max_blocks = 20;
  ScoreRig rig(options);
  gpu::Shape shape = rig.shape;
  const bool float8 = c.summaries == SummaryType::kFloat8;
  shape.summaries = c.summaries;
  if (float8) shape.summary_bytes = 2 * shape.head_dim;
  // NHD pages in an order of their own, with a gap between tokens.
  constexpr uint32_t kPages = 24, kFirst = 3, kBlocks = 14;
  gpu::DensePages dense;
  dense.head_stride = shape.key_bytes;
  dense.token_stride = shape.key_bytes * shape.kv_heads + 16;
  dense.page_stride = dense.token_stride * shape.block_tokens;
  Array<std::byte> keys(kPages * dense.page_stride);
  auto bytes =
      MakeKeys(c.element, c.keys, keys.host.size() / (shape.key_bytes / shape.head_dim), random);
  std::copy(bytes.begin(), bytes.end(), keys.host.begin());
  keys.Upload();
  Array<int32_t> table(2 * kPages);
  for (size_t i = 0; i < table.host.size(); ++i) table.host[i] = i * 7 % kPages;
  table.Upload();
  dense.k = keys.device();
  dense.table = table.device();
  dense.table_stride = kPages;
  Array<std::byte> out(size_t{shape.kv_heads} * shape.max_blocks * shape.summary_bytes,
                       std::byte{0xA5});
  std::vector<std::byte> expected = out.host, summary(2 * shape.key_bytes);
  const auto type = static_cast<ElementType>(c.element);
  for (uint32_t b = kFirst; b < kFirst + kBlocks; ++b) {
    for (uint32_t h = 0; h < shape.kv_heads; ++h) {
      const std::byte* const from =
          keys.host.data() + table.host[kPages + b] * dense.page_stride + h * dense.head_stride;
      std::byte* const to =
          expected.data() + (size_t{h} * shape.max_blocks + b) * shape.summary_bytes;
      SummariseKeys(type, shape.head_dim, from, dense.token_stride, shape.block_tokens,
                    summary.data());
      if (float8) {
        SummaryToFloat8(type, shape.head_dim, summary.data(), to);
      } else {
        std::copy(summary.begin(), summary.end(), to);
      }
    }
  }
  ASSERT_LAUNCHED(gpu::BuildSummaries(shape, dense, 1, kFirst, kBlocks, out.device(), nullptr));
  ASSERT_CUDA(cudaDeviceSynchronize());
  EXPECT_TRUE(out.Download() == expected);
}

TEST(SummaryKernelTest, BuildsWhatTheCpuBackendBuilds) {
  OASISKV_NEEDS_GPU();
  std::mt19937_64 random(3);
  for (gpu::Element element :
       {gpu::Element::kFloat16, gpu::Element::kBFloat16, gpu::Element::kFloat32}) {
    for (Keys keys : {Keys::kNumbers, Keys::kSpecial, Keys::kAnyBits}) {
      for (SummaryType summaries : {SummaryType::kAsKeys, SummaryType::kFloat8}) {
        SCOPED_TRACE(testing::Message()
                     << "element " << static_cast<int>(element) << ", keys "
                     << static_cast<int>(keys) << ", summaries " << static_cast<int>(summaries));
        ExpectSummaries({element, keys, summaries}, random);
      }
    }
  }
}

// Every 16-bit key there is, alone in its block, so that it is minimum and maximum: the device's
// rounding is the host's.
TEST(SummaryKernelTest, EveryNumberOf16BitsIsRoundedAsOnTheHost) {
  OASISKV_NEEDS_GPU();
  for (gpu::Element element : {gpu::Element::kFloat16, gpu::Element::kBFloat16}) {
    gpu::Shape shape;
    shape.kv_heads = 1;
    shape.head_dim = 1024;
    shape.block_tokens = 1;
    shape.element = element;
    shape.key_bytes = 2 * shape.head_dim;
    shape.summaries = SummaryType::kFloat8;
    shape.summary_bytes = 2 * shape.head_dim;
    shape.max_blocks = 64;
    Array<std::byte> keys(size_t{shape.max_blocks} * shape.key_bytes);
    for (uint32_t bits = 0; bits < 65536; ++bits) std::memcpy(&keys.host[2 * bits], &bits, 2);
    keys.Upload();
    Array<int32_t> table(shape.max_blocks);
    std::iota(table.host.begin(), table.host.end(), 0);
    table.Upload();
    gpu::DensePages dense;
    dense.k = keys.device();
    dense.table = table.device();
    dense.page_stride = dense.head_stride = dense.token_stride = shape.key_bytes;
    Array<std::byte> out(size_t{shape.max_blocks} * shape.summary_bytes);
    ASSERT_LAUNCHED(
        gpu::BuildSummaries(shape, dense, 0, 0, shape.max_blocks, out.device(), nullptr));
    ASSERT_CUDA(cudaDeviceSynchronize());
    const std::vector<std::byte> found = out.Download();
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const size_t at = size_t{bits / shape.head_dim} * shape.summary_bytes + bits % shape.head_dim;
      for (bool up : {false, true}) {
        const uint32_t code = element == gpu::Element::kFloat16
                                  ? Float16Format::ToFloat8(bits, up)
                                  : BFloat16Format::ToFloat8(bits, up);
        ASSERT_EQ(static_cast<uint32_t>(found[at + (up ? shape.head_dim : 0)]), code)
            << "element " << static_cast<int>(element) << ", bits " << bits << ", up " << up;
      }
    }
  }
}

}  // namespace
}  // namespace oasiskv::gpu_test
