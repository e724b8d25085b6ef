// The local block: tokens that enter it, its summary, and its way back into host memory.
#include <gmock/gmock.h>

#include "client/selection/summary.h"
#include "tests/gpu/transfer_rig.h"

namespace oasiskv {
namespace {

using gpu_test::Array;
using gpu_test::FillRandom;
using gpu_test::PageLayout;
using gpu_test::Rig;
using gpu_test::RigOptions;

// The summary that the cpu backend makes of a contiguous entry: as keys, and as the pool has it.
std::vector<std::byte> CpuSummary(const Rig& rig, const std::byte* entry) {
  std::vector<std::byte> summary(2 * rig.shape.key_bytes);
  SummariseKeys(static_cast<ElementType>(rig.shape.element), rig.shape.head_dim, entry,
                rig.shape.key_bytes, rig.shape.block_tokens, summary.data());
  return summary;
}
std::vector<std::byte> PoolSummary(const Rig& rig, const std::byte* entry) {
  std::vector<std::byte> summary = CpuSummary(rig, entry);
  if (rig.shape.summaries == SummaryType::kAsKeys) return summary;
  std::vector<std::byte> float8(rig.shape.summary_bytes);
  SummaryToFloat8(static_cast<ElementType>(rig.shape.element), rig.shape.head_dim, summary.data(),
                  float8.data());
  return float8;
}

std::vector<std::byte> Slice(const std::vector<std::byte>& all, size_t at, size_t size) {
  return {all.begin() + at, all.begin() + at + size};
}

size_t SummaryAt(const Rig& rig, uint32_t slot, uint32_t head, uint32_t block) {
  return slot * rig.mem.summaries_slot_stride +
         (size_t{head} * rig.shape.max_blocks + block) * rig.shape.summary_bytes;
}

struct Case {
  const char* name;
  RigOptions options;
  uint32_t first_element;  // of the rows in their buffer: odd ones are not 16-byte aligned
};

class AppendTest : public ::testing::TestWithParam<Case> {};

TEST_P(AppendTest, TokensLandAndFullBlocksAreSummarised) {
  OASISKV_NEEDS_GPU();
  Rig rig(GetParam().options);
  const gpu::Shape& shape = rig.shape;
  const std::vector<int32_t> slots = {3, 1, 0};
  rig.SetRows(slots);
  const uint32_t element_bytes = shape.key_bytes / shape.head_dim;
  const size_t row = size_t{shape.kv_heads} * shape.head_dim + 8;  // elements; rows lie apart
  rig.state.host[1].local_tokens = 1;
  rig.state.host[1].complete = 9;
  rig.state.Upload();
  std::vector<std::byte> summaries = rig.summaries.Download();
  for (uint32_t step = 0; step < shape.block_tokens; ++step) {
    SCOPED_TRACE(::testing::Message() << "token " << step);
    const size_t elements = GetParam().first_element + row * rig.rows.max_rows;
    Array<std::byte> keys(elements * element_bytes), values(elements * element_bytes);
    FillRandom(rig.random, keys.host);
    FillRandom(rig.random, values.host);
    keys.Upload();
    values.Upload();
    const size_t first = GetParam().first_element * element_bytes;
    ASSERT_LAUNCHED(gpu::Append(shape, rig.layer, rig.mem, rig.rows, keys.device() + first,
                                shape.latent ? nullptr : values.device() + first,
                                static_cast<int64_t>(row), &rig.error(), nullptr));
    ASSERT_CUDA(cudaDeviceSynchronize());
    for (size_t r = 0; r < slots.size(); ++r) {
      gpu::SlotState& state = rig.state.host[slots[r]];
      if (state.local_tokens == shape.block_tokens) continue;  // full: overflows
      for (uint32_t h = 0; h < shape.kv_heads; ++h) {
        const size_t from = first + (r * row + h * shape.head_dim) * element_bytes;
        for (bool value : {false, true}) {
          if (value && shape.latent) continue;
          std::memcpy(
              &rig.pool.host[rig.TokenAt(slots[r], h, shape.resident, value, state.local_tokens)],
              (value ? values : keys).host.data() + from, shape.key_bytes);
        }
      }
      if (++state.local_tokens < shape.block_tokens) continue;
      for (uint32_t h = 0; h < shape.kv_heads; ++h) {
        const auto entry = rig.PageOf(rig.pool.host, slots[r], h, shape.resident);
        const auto summary = PoolSummary(rig, entry.data());
        std::copy(summary.begin(), summary.end(),
                  summaries.begin() + SummaryAt(rig, slots[r], h, state.complete));
      }
    }
    EXPECT_TRUE(rig.pool.Download() == rig.pool.host);
    EXPECT_TRUE(rig.summaries.Download() == summaries);
    const auto states = rig.state.Download();
    for (uint32_t s = 0; s < shape.slots; ++s) {
      EXPECT_EQ(states[s].local_tokens, rig.state.host[s].local_tokens) << "slot " << s;
      EXPECT_EQ(states[s].complete, rig.state.host[s].complete) << "slot " << s;
    }
  }
  // Slot 1 was full a token before the others.
  EXPECT_EQ(rig.error().code, static_cast<uint32_t>(gpu::ErrorKind::kOverflow));
  EXPECT_EQ(rig.error().slot, 1u);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, AppendTest,
    ::testing::Values(
        Case{"Bf16", {}, 0}, Case{"Unaligned", {.head_dim = 128}, 3},
        Case{"Float16Nhd",
             {.kv_heads = 11,
              .element = gpu::Element::kFloat16,
              .layout = PageLayout::kNhd,
              .table = true},
             0},
        Case{"Float32", {.head_dim = 12, .element = gpu::Element::kFloat32}, 0},
        Case{"Latent", {.head_dim = 576, .latent = true}, 0},
        Case{"Bf16Float8", {.summaries = SummaryType::kFloat8}, 0},
        Case{"Float16Float8",
             {.head_dim = 144,
              .element = gpu::Element::kFloat16,
              .summaries = SummaryType::kFloat8,
              .layout = PageLayout::kNhd},
             0},
        Case{"Float32Float8",
             {.head_dim = 48, .element = gpu::Element::kFloat32, .summaries = SummaryType::kFloat8},
             0},
        Case{"LatentFloat8",
             {.head_dim = 576, .summaries = SummaryType::kFloat8, .latent = true},
             0}),
    [](const auto& c) { return std::string(c.param.name); });

TEST(LocalBlockTest, AnEngineThatWroteTheTokenItselfMovesTheBooksOnly) {
  OASISKV_NEEDS_GPU();
  Rig rig({});
  rig.SetRows({2});
  rig.state.host[2].local_tokens = rig.shape.block_tokens - 1;
  rig.state.host[2].complete = 4;
  rig.state.Upload();
  ASSERT_LAUNCHED(gpu::Append(rig.shape, rig.layer, rig.mem, rig.rows, nullptr, nullptr, 0,
                              &rig.error(), nullptr));
  EXPECT_TRUE(rig.pool.Download() == rig.pool.host);
  EXPECT_EQ(rig.state.Download()[2].local_tokens, rig.shape.block_tokens);
  for (uint32_t h = 0; h < rig.shape.kv_heads; ++h) {
    const auto entry = rig.PageOf(rig.pool.host, 2, h, rig.shape.resident);
    EXPECT_EQ(Slice(rig.summaries.Download(), SummaryAt(rig, 2, h, 4), rig.shape.summary_bytes),
              CpuSummary(rig, entry.data()));
  }
}

TEST(LocalBlockTest, NoTokenBeyondMaxBlocks) {
  OASISKV_NEEDS_GPU();
  Rig rig({});
  rig.SetRows({2});
  rig.state.host[2].complete = rig.shape.max_blocks;
  rig.state.Upload();
  ASSERT_LAUNCHED(gpu::Append(rig.shape, rig.layer, rig.mem, rig.rows, nullptr, nullptr, 0,
                              &rig.error(), nullptr));
  EXPECT_EQ(rig.state.Download()[2].local_tokens, 0u);
  EXPECT_EQ(rig.error().code, static_cast<uint32_t>(gpu::ErrorKind::kOverflow));
}

struct WriteBackCase {
  const char* name;
  RigOptions options;
};

class WriteBackTest : public ::testing::TestWithParam<WriteBackCase> {};

TEST_P(WriteBackTest, EntriesAndSummariesOfPromotedRowsOnly) {
  OASISKV_NEEDS_GPU();
  Rig rig(GetParam().options);
  const gpu::Shape& shape = rig.shape;
  rig.SetRows({0, 2, 1});
  for (int32_t s : {2, 1}) {
    rig.state.host[s].promoted = rig.state.host[s].complete = 5 + s;
    rig.state.host[s].local_tokens = shape.block_tokens;
    rig.state.host[s].pending = 1;
  }
  rig.state.Upload();
  const bool summaries = !GetParam().options.frame_per_layer;
  const size_t frames = size_t{shape.slots} * shape.max_blocks *
                        static_cast<size_t>(rig.Frame(0, 1) - rig.Frame(0, 0));
  std::vector<std::byte> expected(rig.Frame(0, 0), rig.Frame(0, 0) + frames);
  const auto expect = [&](const std::byte* at, const std::byte* from, size_t bytes) {
    std::memcpy(expected.data() + (at - rig.Frame(0, 0)), from, bytes);
  };
  for (int32_t s : {2, 1}) {
    for (uint32_t h = 0; h < shape.kv_heads; ++h) {
      const auto entry = rig.PageOf(rig.pool.host, s, h, shape.resident);
      expect(rig.Entry(s, h, 5 + s), entry.data(), entry.size());
      if (!summaries) continue;
      const auto summary = CpuSummary(rig, entry.data());
      expect(rig.Summary(s, h, 5 + s), summary.data(), summary.size());
    }
  }
  ASSERT_LAUNCHED(gpu::WriteBack(shape, rig.layer, rig.mem, rig.rows, rig.sources.device(),
                                 summaries ? rig.summaries_offset() : 0, &rig.error(), nullptr));
  ASSERT_CUDA(cudaDeviceSynchronize());
  EXPECT_EQ(std::memcmp(expected.data(), rig.Frame(0, 0), frames), 0);
  EXPECT_EQ(rig.error().code, 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, WriteBackTest,
    ::testing::Values(WriteBackCase{"Hnd", {}},
                      WriteBackCase{
                          "NhdTogether",
                          {.kv_heads = 9, .layout = PageLayout::kNhdTogether, .table = true}},
                      WriteBackCase{"Float8", {.summaries = SummaryType::kFloat8}},
                      WriteBackCase{"FramePerLayer", {.head_dim = 128, .frame_per_layer = true}},
                      WriteBackCase{"Latent", {.head_dim = 576, .latent = true}}),
    [](const auto& c) { return std::string(c.param.name); });

TEST(WriteBackFaultsTest, NothingIsWrittenWhereAFrameIsMissingOrNoLongerGranted) {
  OASISKV_NEEDS_GPU();
  for (bool missing : {true, false}) {
    Rig rig({});
    rig.SetRows({3});
    rig.state.host[3].promoted = 6;
    rig.state.host[3].pending = 1;
    rig.state.Upload();
    if (missing) {
      rig.frames.host[3 * rig.shape.max_blocks + 6] = 0;
      rig.frames.Upload();
    } else {
      for (uint32_t h = 0; h < rig.shape.kv_heads; ++h) rig.grant_word(3, h) = 0;
    }
    const std::vector<std::byte> before(rig.Frame(3, 6), rig.Frame(3, 7));
    ASSERT_LAUNCHED(gpu::WriteBack(rig.shape, rig.layer, rig.mem, rig.rows, rig.sources.device(),
                                   rig.summaries_offset(), &rig.error(), nullptr));
    ASSERT_CUDA(cudaDeviceSynchronize());
    EXPECT_EQ(std::vector<std::byte>(rig.Frame(3, 6), rig.Frame(3, 7)), before);
    EXPECT_EQ(rig.error().code,
              static_cast<uint32_t>(missing ? gpu::ErrorKind::kMissing : gpu::ErrorKind::kStale));
  }
}

}  // namespace
}  // namespace oasiskv
