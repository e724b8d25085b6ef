// Gather and Commit: every byte of the page pool, and what stays out of the map.
#include <gmock/gmock.h>

#include <numeric>
#include <string>
#include <tuple>

#include "tests/gpu/transfer_rig.h"

namespace oasiskv {
namespace {

using gpu_test::PageLayout;
using gpu_test::Rig;
using gpu_test::RigOptions;

constexpr int32_t kNoBlock = -1;

// Thread contract: one thread. Drives Select, Gather and Commit with random lists; the pool's
// mirror (rig.pool.host) is what the pool must be afterwards.
class Driver {
 public:
  explicit Driver(const RigOptions& options) : rig(options) {
    for (gpu::SlotState& state : rig.state.host) state.complete = rig.shape.max_blocks - 8;
    rig.state.Upload();
  }

  // Select of `slots`: random lists; the local blocks of `full` are complete.
  void Plan(const std::vector<int32_t>& slots, const std::vector<int32_t>& full) {
    rig.state.host = rig.state.Download();
    for (int32_t slot : full) rig.state.host[slot].local_tokens = rig.shape.block_tokens;
    rig.state.Upload();
    for (int32_t slot : slots) {
      for (uint32_t h = 0; h < rig.shape.kv_heads; ++h) {
        std::vector<int32_t> blocks(rig.state.host[slot].complete);
        std::iota(blocks.begin(), blocks.end(), 0);
        std::shuffle(blocks.begin(), blocks.end(), rig.random);
        blocks.resize(rig.shape.resident, kNoBlock);
        std::copy(blocks.begin(), blocks.end(), rig.predicted.host.begin() + rig.At(slot, h, 0));
      }
    }
    rig.predicted.Upload();
    rig.SetRows(slots);
    ASSERT_LAUNCHED(gpu::Select(rig.shape, rig.mem, rig.rows, true, rig.shape.cap, rig.plan,
                                rig.counters.device(), nullptr));
    items = rig.Items();
    expected_map = rig.map.Download();
  }

  // What a plan does when nothing goes wrong, to the mirror and `expected_map`.
  void ExpectCopied(const gpu::PlanItem& item) {
    const bool promoted = (item.flags & gpu::kItemPromoted) != 0;
    const std::vector<std::byte> local =
        rig.PageOf(rig.pool.host, item.slot, item.head, rig.shape.resident);
    rig.SetPage(rig.pool.host, item.slot, item.head, item.page,
                promoted ? local.data() : rig.Entry(item.slot, item.head, item.block));
  }
  void ExpectEntered(const gpu::PlanItem& item, bool entered) {
    expected_map[rig.At(item.slot, item.head, item.page)] = entered ? item.block : kNoBlock;
  }

  void Gather(const gpu::GatherOptions& options = {}) {
    ASSERT_LAUNCHED(gpu::Gather(rig.shape, rig.layer, rig.mem, rig.plan, rig.sources.device(),
                                options, &rig.error(), nullptr));
    ASSERT_CUDA(cudaDeviceSynchronize());
  }
  void Commit() {
    ASSERT_LAUNCHED(gpu::Commit(rig.shape, rig.layer, rig.mem, rig.rows, rig.plan,
                                rig.sources.device(), rig.counters.device(), &rig.error(),
                                nullptr));
    ASSERT_CUDA(cudaDeviceSynchronize());
  }
  void Check() {
    EXPECT_TRUE(rig.pool.Download() == rig.pool.host) << "a byte of the pages is not what it was "
                                                         "to be, or one beside them changed";
    EXPECT_EQ(rig.map.Download(), expected_map);
  }
  void CheckNoError() { EXPECT_EQ(rig.error().code, 0u); }

  Rig rig;
  std::vector<gpu::PlanItem> items;
  std::vector<int32_t> expected_map;
};

struct Shape {
  const char* name;
  RigOptions options;
};

const Shape kShapes[] = {
    {"Bf16", {}},
    {"Bf16Dim128", {.head_dim = 128, .resident = 12, .cap = 12}},
    {"Float32", {.head_dim = 24, .element = gpu::Element::kFloat32}},
    {"OddTokens", {.head_dim = 8, .block_tokens = 5, .table = true}},
    {"Table", {.head_dim = 128, .table = true, .frame_per_layer = true}},
    {"BigEntry", {.kv_heads = 2, .head_dim = 256, .block_tokens = 64, .slots = 2}},
};
const Shape kLatent = {"Latent", {.head_dim = 576, .latent = true, .table = true}};

std::vector<std::tuple<Shape, PageLayout>> Shapes() {
  std::vector<std::tuple<Shape, PageLayout>> all = {{kLatent, PageLayout::kHnd}};
  for (const Shape& shape : kShapes) {
    for (PageLayout layout : gpu_test::kPageLayouts) all.emplace_back(shape, layout);
  }
  return all;
}

std::string Name(const ::testing::TestParamInfo<std::tuple<Shape, PageLayout>>& info) {
  constexpr const char* kNames[] = {"Hnd", "Nhd", "HndTogether", "NhdTogether", "Entries"};
  return std::string(std::get<0>(info.param).name) +
         kNames[static_cast<int>(std::get<1>(info.param))];
}

class TransferTest : public ::testing::TestWithParam<std::tuple<Shape, PageLayout>> {};

TEST_P(TransferTest, EveryByteOverSteps) {
  OASISKV_NEEDS_GPU();
  RigOptions options = std::get<0>(GetParam()).options;
  options.layout = std::get<1>(GetParam());
  options.slots = std::min(options.slots, 4u);
  Driver d(options);
  const std::vector<gpu::GatherOptions> launches = {{.ctas = 4, .threads = 1024, .loads = 4},
                                                    {.ctas = 1, .threads = 32, .loads = 8},
                                                    {.ctas = 3, .threads = 96, .loads = 4},
                                                    {.ctas = 2, .threads = 1024, .loads = 8}};
  for (size_t step = 0; step < 6; ++step) {
    SCOPED_TRACE(::testing::Message() << "step " << step);
    d.Plan(step == 3 ? std::vector<int32_t>{} : std::vector<int32_t>{1, 0},
           step % 2 == 0 ? std::vector<int32_t>{1} : std::vector<int32_t>{});
    for (const gpu::PlanItem& item : d.items) {
      d.ExpectCopied(item);
      d.ExpectEntered(item, false);
    }
    d.Gather(launches[step % launches.size()]);
    d.Check();  // all bytes are there, and no page is in the map yet
    for (const gpu::PlanItem& item : d.items) d.ExpectEntered(item, true);
    d.Commit();
    d.Check();
    d.CheckNoError();
  }
  EXPECT_FALSE(d.rig.map.Download() == std::vector<int32_t>(d.rig.map.host.size(), kNoBlock));
}

INSTANTIATE_TEST_SUITE_P(Shapes, TransferTest, ::testing::ValuesIn(Shapes()), Name);

TEST(TransferFaultsTest, AChangedGrantWordKeepsOnlyThatSlotsItemsOut) {
  OASISKV_NEEDS_GPU();
  Driver d({});
  d.Plan({2, 0, 1}, {2, 0});
  for (const gpu::PlanItem& item : d.items) d.ExpectCopied(item);
  d.Gather();
  d.rig.grant_word(2, 3) = 7;  // one head's is enough for the whole request
  for (const gpu::PlanItem& item : d.items) {
    d.ExpectEntered(item, item.slot != 2 || (item.flags & gpu::kItemPromoted) != 0);
  }
  d.Commit();
  d.Check();
  EXPECT_EQ(d.rig.error().code, static_cast<uint32_t>(gpu::ErrorKind::kStale));
  EXPECT_EQ(d.rig.error().layer, d.rig.layer);
  EXPECT_EQ(d.rig.error().slot, 2u);
  EXPECT_EQ(d.rig.error().detail, 3u);
  const auto counters = d.rig.counters.Download();
  EXPECT_EQ(counters[2].admitted, 0u);
  EXPECT_EQ(counters[2].skipped + counters[2].refused + counters[2].promoted,
            counters[2].predicted);
  EXPECT_EQ(counters[0].skipped, 0u);
  EXPECT_GT(counters[0].admitted, 0u);
  // What the slot itself made is promoted all the same.
  EXPECT_EQ(d.rig.state.Download()[2].complete, d.rig.shape.max_blocks - 7);
  EXPECT_EQ(d.rig.state.Download()[2].local_tokens, 0u);
}

TEST(TransferFaultsTest, TheFirstErrorStays) {
  OASISKV_NEEDS_GPU();
  Driver d({});
  d.Plan({0, 1}, {});
  d.Gather();
  d.rig.error().code = 99;
  d.rig.grant_word(1, 0) = 7;
  d.Commit();
  EXPECT_EQ(d.rig.error().code, 99u);
  d.rig.error().code = 0;
  d.Plan({1}, {});
  d.Gather();
  d.Commit();
  EXPECT_EQ(d.rig.error().code, static_cast<uint32_t>(gpu::ErrorKind::kStale));
}

TEST(TransferFaultsTest, MemoryOfTheProcessItselfHasNoWord) {
  OASISKV_NEEDS_GPU();
  Driver d({});
  for (gpu::HeadSource& source : d.rig.sources.host) source.grant_word = nullptr;
  d.rig.sources.Upload();
  d.Plan({0, 1}, {0});
  for (const gpu::PlanItem& item : d.items) {
    d.ExpectCopied(item);
    d.ExpectEntered(item, true);
  }
  d.Gather();
  d.Commit();
  d.Check();
  d.CheckNoError();
}

TEST(TransferFaultsTest, AMissingFrameSkipsItsItemsOnly) {
  OASISKV_NEEDS_GPU();
  Driver d({.head_dim = 256});  // several chunks an entry
  d.Plan({0, 3}, {});
  ASSERT_FALSE(d.items.empty());
  const gpu::PlanItem gone = d.items[d.items.size() / 2];
  d.rig.frames.host[gone.slot * d.rig.shape.max_blocks + gone.block] = 0;
  d.rig.frames.Upload();
  for (const gpu::PlanItem& item : d.items) {
    const bool skipped = item.slot == gone.slot && item.block == gone.block;
    if (!skipped) d.ExpectCopied(item);
    d.ExpectEntered(item, !skipped);
  }
  d.Gather();
  d.Commit();
  d.Check();
  EXPECT_EQ(d.rig.error().code, static_cast<uint32_t>(gpu::ErrorKind::kMissing));
  EXPECT_EQ(d.rig.error().slot, gone.slot);
  EXPECT_EQ(d.rig.error().detail, static_cast<uint32_t>(gone.block));
  EXPECT_GE(d.rig.counters.Download()[gone.slot].skipped, 1u);
}

TEST(TransferFaultsTest, AFlaggedItemIsNeitherReadNorEntered) {
  OASISKV_NEEDS_GPU();
  Driver d({});
  d.Plan({1}, {});
  for (const gpu::PlanItem& item : d.items) {
    d.ExpectCopied(item);
    d.ExpectEntered(item, true);
  }
  d.Gather();
  d.Commit();
  d.Plan({1}, {});
  ASSERT_GE(d.items.size(), 3u);
  // The first page is empty afterwards, the second keeps what it held.
  d.rig.items.host = d.rig.items.Download();
  d.rig.items.host[0].flags |= gpu::kItemSkipped;
  d.rig.items.host[1].flags |= gpu::kItemRefused;
  d.rig.items.Upload();
  for (size_t i = 0; i < d.items.size(); ++i) {
    if (i > 1) d.ExpectCopied(d.items[i]);
    if (i != 1) d.ExpectEntered(d.items[i], i > 1);
  }
  d.Gather();
  d.Commit();
  d.Check();
  d.CheckNoError();
  EXPECT_EQ(d.rig.counters.Download()[1].skipped, 2u);
}

TEST(TransferFaultsTest, CommitComesOnceForASelection) {
  OASISKV_NEEDS_GPU();
  Driver d({});
  d.Plan({1}, {1});
  d.Gather();
  d.Commit();
  const gpu::SlotState once = d.rig.state.Download()[1];
  EXPECT_EQ(once.clock, 1u);
  EXPECT_EQ(once.complete, d.rig.shape.max_blocks - 7);
  d.Commit();
  EXPECT_EQ(d.rig.state.Download()[1].clock, 1u);
  EXPECT_EQ(d.rig.state.Download()[1].complete, once.complete);
}

TEST(TransferFaultsTest, WhatCannotBeLaunchedIsRefusedByText) {
  gpu::Shape shape;
  shape.key_bytes = 24;
  shape.block_tokens = 16;
  EXPECT_THAT(gpu::Gather(shape, 0, {}, {}, nullptr, {}, nullptr, nullptr),
              ::testing::HasSubstr("multiple of 16 bytes"));
  shape.key_bytes = 32;
  EXPECT_THAT(gpu::Gather(shape, 0, {}, {}, nullptr, {.ctas = 0}, nullptr, nullptr),
              ::testing::HasSubstr("ctas"));
  EXPECT_THAT(gpu::Gather(shape, 0, {}, {}, nullptr, {.loads = 3}, nullptr, nullptr),
              ::testing::HasSubstr("loads"));
}

}  // namespace
}  // namespace oasiskv
