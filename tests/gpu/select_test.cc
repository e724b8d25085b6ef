// Select and Commit on the GPU against the cpu backend's Selector, over many steps of one state.
#include "client/selection/select.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/gpu/transfer_rig.h"

namespace oasiskv {
namespace {

using gpu_test::Rig;

struct Case {
  uint32_t resident, max_blocks, cap;
  uint32_t slots, steps;
};

std::string Name(const ::testing::TestParamInfo<Case>& info) {
  return absl::StrCat("K", info.param.resident, "Blocks", info.param.max_blocks, "Cap",
                      info.param.cap);
}

// How a step's lists are made; each (row, head) draws its own.
enum class ListKind { kAllResident, kNoneResident, kMixed, kShort, kEmpty, kCount };

// Thread contract: one thread. The cpu backend's state of the rig's slots.
class Model {
 public:
  Model(Rig* rig, uint32_t steps) : rig_(*rig), selector_(rig->shape.max_blocks), steps_(steps) {}

  // Complete blocks of different numbers, pages partly filled, stamps with many ties.
  void Begin() {
    const uint32_t k = rig_.shape.resident;
    for (uint32_t s = 0; s < rig_.shape.slots; ++s) {
      gpu::SlotState& state = rig_.state.host[s];
      state.complete = s == 0 ? 0 : Below(rig_.shape.max_blocks - steps_ % rig_.shape.max_blocks);
      state.local_tokens = 0;
      state.clock = Below(5);
      for (uint32_t h = 0; h < rig_.shape.kv_heads; ++h) {
        const std::vector<int32_t> blocks = Blocks(state.complete);
        const uint32_t filled =
            static_cast<uint32_t>(std::min<size_t>(blocks.size(), s % 2 == 0 ? k : Below(k + 1)));
        std::vector<uint32_t> pages(k);
        std::iota(pages.begin(), pages.end(), 0);
        std::shuffle(pages.begin(), pages.end(), rig_.random);
        for (uint32_t i = 0; i < filled; ++i) {
          rig_.map.host[rig_.At(s, h, pages[i])] = blocks[i];
          rig_.stamps.host[rig_.At(s, h, pages[i])] = Below(static_cast<uint32_t>(state.clock) + 1);
        }
      }
    }
    rig_.map.Upload();
    rig_.stamps.Upload();
    rig_.state.Upload();
  }

  // One Select and Commit of some rows; everything must come out as on the cpu.
  void Step(bool predicts, bool resolve, uint32_t cap) {
    const gpu::Shape& shape = rig_.shape;
    const uint32_t k = shape.resident;
    std::vector<int32_t> slots(shape.slots);
    std::iota(slots.begin(), slots.end(), 0);
    std::shuffle(slots.begin(), slots.end(), rig_.random);
    slots.resize(Below(std::min(shape.slots, rig_.rows.max_rows) + 1));
    for (int32_t slot : slots) {
      gpu::SlotState& state = rig_.state.host[slot];
      const bool fills = Below(2) == 0 && state.complete + 1 < shape.max_blocks;
      state.local_tokens = fills ? shape.block_tokens : Below(shape.block_tokens);
    }
    MakeLists(slots, resolve);
    rig_.SetRows(slots);
    rig_.state.Upload();
    rig_.predicted.Upload();
    rig_.plan.resolve = resolve;
    ASSERT_LAUNCHED(gpu::Select(shape, rig_.mem, rig_.rows, predicts, cap, rig_.plan,
                                rig_.counters.device(), nullptr));
    ASSERT_CUDA(cudaDeviceSynchronize());

    std::vector<std::vector<Change>> plans;  // [row][head]
    std::vector<uint64_t> nows;
    for (int32_t slot : slots) {
      gpu::SlotState& state = rig_.state.host[slot];
      const bool full = state.local_tokens == shape.block_tokens && !resolve;
      const int32_t promoted = full ? static_cast<int32_t>(state.complete) : kNoBlock;
      const bool concerns = predicts || full;
      SelectCounts counts;
      for (uint32_t h = 0; h < shape.kv_heads; ++h) {
        std::vector<Change>& changes = plans.emplace_back();
        if (!concerns) continue;
        std::span<const int32_t> chosen(&promoted, full ? 1 : 0);
        if (predicts) {
          const std::span<int32_t> list =
              std::span(rig_.predicted.host).subspan(rig_.At(slot, h, 0), k);
          if (full) IncludePromoted(list, promoted);
          chosen = list;
        }
        selector_.Select(h, chosen, promoted, cap, state.clock + 1,
                         std::span(rig_.map.host).subspan(rig_.At(slot, h, 0), k),
                         std::span(rig_.stamps.host).subspan(rig_.At(slot, h, 0), k), &changes,
                         &counts);
      }
      gpu::SlotCounters& book = rig_.counters.host[slot];
      if (predicts && !resolve) {
        ++book.steps;
        book.predicted += counts.predicted;
        book.hit += counts.hit;
        book.refused += counts.refused;
      }
      if (!concerns) continue;
      state.promoted = promoted;
      state.pending = 1;
    }
    CheckPlan(slots, plans);
    CheckState();

    ASSERT_LAUNCHED(gpu::Commit(shape, rig_.layer, rig_.mem, rig_.rows, rig_.plan,
                                rig_.sources.device(), rig_.counters.device(), &rig_.error(),
                                nullptr));
    ASSERT_CUDA(cudaDeviceSynchronize());
    for (size_t r = 0; r < slots.size(); ++r) {
      gpu::SlotState& state = rig_.state.host[slots[r]];
      gpu::SlotCounters& book = rig_.counters.host[slots[r]];
      if (state.pending == 0) continue;
      state.pending = 0;
      ++state.clock;
      for (uint32_t h = 0; h < shape.kv_heads; ++h) {
        for (const Change& change : plans[r * shape.kv_heads + h]) {
          const size_t at = rig_.At(slots[r], h, change.page);
          rig_.map.host[at] = change.block;
          rig_.stamps.host[at] = state.clock;
          if (!change.promoted) ++(resolve ? book.demanded : book.admitted);
        }
      }
      if (state.promoted < 0) continue;
      book.promoted += shape.kv_heads;
      ++state.complete;
      state.local_tokens = 0;
      state.promoted = -1;
    }
    CheckState();
    EXPECT_EQ(rig_.error().code, 0u);
  }

  uint32_t Below(uint32_t n) { return n == 0 ? 0 : static_cast<uint32_t>(rig_.random() % n); }

 private:
  // [0, n) in random order.
  std::vector<int32_t> Blocks(uint32_t n) {
    std::vector<int32_t> blocks(n);
    std::iota(blocks.begin(), blocks.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), rig_.random);
    return blocks;
  }

  void MakeLists(const std::vector<int32_t>& slots, bool resolve) {
    const uint32_t k = rig_.shape.resident;
    for (int32_t slot : slots) {
      const gpu::SlotState& state = rig_.state.host[slot];
      const bool full = state.local_tokens == rig_.shape.block_tokens && !resolve;
      for (uint32_t h = 0; h < rig_.shape.kv_heads; ++h) {
        const std::span<const int32_t> map =
            std::span(rig_.map.host).subspan(rig_.At(slot, h, 0), k);
        std::vector<bool> held(rig_.shape.max_blocks);
        for (int32_t block : map) {
          if (block >= 0) held[block] = true;
        }
        std::vector<int32_t> in, out;
        for (int32_t block : Blocks(state.complete + (full ? 1 : 0))) {
          (held[block] ? in : out).push_back(block);
        }
        std::vector<int32_t> list;
        const auto kind = static_cast<ListKind>(Below(static_cast<uint32_t>(ListKind::kCount)));
        switch (kind) {
          case ListKind::kAllResident:
            list = in;
            break;
          case ListKind::kNoneResident:
            list = out;
            break;
          case ListKind::kMixed:
          case ListKind::kShort: {
            list = in;
            list.insert(list.end(), out.begin(), out.end());
            std::shuffle(list.begin(), list.end(), rig_.random);
            if (kind == ListKind::kShort)
              list.resize(Below(static_cast<uint32_t>(list.size()) + 1));
            break;
          }
          case ListKind::kEmpty:
          case ListKind::kCount:
            break;
        }
        list.resize(k, kNoBlock);
        std::copy(list.begin(), list.end(), rig_.predicted.host.begin() + rig_.At(slot, h, 0));
      }
    }
  }

  void CheckPlan(const std::vector<int32_t>& slots, const std::vector<std::vector<Change>>& plans) {
    const std::vector<gpu::PlanItem> items = rig_.Items();
    const std::vector<gpu::PlanGroup> groups = rig_.groups.Download();
    size_t total = 0;
    std::vector<bool> seen(items.size());
    for (size_t g = 0; g < plans.size(); ++g) {
      const std::vector<Change>& want = plans[g];
      ASSERT_EQ(groups[g].count, want.size()) << "row and head " << g;
      total += want.size();
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_LT(groups[g].first + i, items.size());
        const gpu::PlanItem& item = items[groups[g].first + i];
        ASSERT_FALSE(seen[groups[g].first + i]) << "two groups share an item";
        seen[groups[g].first + i] = true;
        const uint32_t heads = rig_.shape.kv_heads;
        EXPECT_EQ(item.row, static_cast<int32_t>(g / heads));
        EXPECT_EQ(item.slot, slots[g / heads]);
        EXPECT_EQ(item.head, g % heads);
        EXPECT_EQ(item.page, want[i].page) << "item " << i;
        EXPECT_EQ(item.block, want[i].block) << "item " << i;
        EXPECT_EQ(item.flags, want[i].promoted ? gpu::kItemPromoted : 0);
      }
    }
    EXPECT_EQ(items.size(), total);
  }

  void CheckState() {
    EXPECT_EQ(rig_.map.Download(), rig_.map.host);
    EXPECT_EQ(rig_.stamps.Download(), rig_.stamps.host);
    EXPECT_EQ(rig_.predicted.Download(), rig_.predicted.host);
    const std::vector<gpu::SlotState> states = rig_.state.Download();
    const std::vector<gpu::SlotCounters> counters = rig_.counters.Download();
    for (uint32_t s = 0; s < rig_.shape.slots; ++s) {
      const gpu::SlotState &state = states[s], &want = rig_.state.host[s];
      EXPECT_EQ(state.clock, want.clock) << "slot " << s;
      EXPECT_EQ(state.complete, want.complete);
      EXPECT_EQ(state.local_tokens, want.local_tokens);
      EXPECT_EQ(state.promoted, want.promoted);
      EXPECT_EQ(state.pending, want.pending);
      const gpu::SlotCounters &book = counters[s], &counts = rig_.counters.host[s];
      EXPECT_EQ(book.steps, counts.steps) << "slot " << s;
      EXPECT_EQ(book.predicted, counts.predicted);
      EXPECT_EQ(book.hit, counts.hit);
      EXPECT_EQ(book.refused, counts.refused);
      EXPECT_EQ(book.admitted, counts.admitted);
      EXPECT_EQ(book.demanded, counts.demanded);
      EXPECT_EQ(book.promoted, counts.promoted);
      EXPECT_EQ(book.skipped, 0u);
    }
  }

  Rig& rig_;
  Selector selector_;
  const uint32_t steps_;
};

class SelectTest : public ::testing::TestWithParam<Case> {};

TEST_P(SelectTest, EqualsTheCpuSelectorOverSteps) {
  OASISKV_NEEDS_GPU();
  const Case& c = GetParam();
  Rig rig({.kv_heads = 3,
           .head_dim = 8,
           .block_tokens = 2,
           .resident = c.resident,
           .max_blocks = c.max_blocks,
           .slots = c.slots,
           .max_rows = c.slots + 2,
           .cap = c.cap,
           .seed = c.resident * 31 + c.cap});
  Model model(&rig, c.steps);
  model.Begin();
  for (uint32_t step = 0; step < c.steps && !::testing::Test::HasFailure(); ++step) {
    SCOPED_TRACE(::testing::Message() << "step " << step);
    switch (model.Below(6)) {
      case 0:
        model.Step(/*predicts=*/false, /*resolve=*/false, c.cap);
        break;
      case 1:
        model.Step(/*predicts=*/true, /*resolve=*/true, std::numeric_limits<uint32_t>::max());
        break;
      default:
        model.Step(/*predicts=*/true, /*resolve=*/false, c.cap);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, SelectTest,
                         ::testing::Values(Case{1, 6, 0, 5, 40}, Case{1, 6, 1, 5, 40},
                                           Case{3, 50, 2, 6, 60}, Case{32, 100, 32, 6, 40},
                                           Case{33, 200, 7, 6, 40}, Case{128, 1024, 0, 8, 30},
                                           Case{128, 1024, 6, 16, 40}, Case{128, 1024, 128, 8, 30},
                                           Case{1000, 8192, 50, 4, 15}, Case{1024, 8192, 51, 4, 15},
                                           Case{1024, 1500, 1024, 4, 15},
                                           Case{2048, 8192, 100, 2, 8}),
                         Name);

TEST(SelectLimitsTest, ManyBlocksUseMoreSharedMemoryThanALaunchHasByDefault) {
  OASISKV_NEEDS_GPU();
  Rig rig({.layers = 1,
           .layer = 0,
           .kv_heads = 1,
           .head_dim = 8,
           .block_tokens = 1,
           .resident = 16,
           .max_blocks = 400000,
           .slots = 1,
           .cap = 2});
  rig.state.host[0].complete = 399999;
  rig.map.host[rig.At(0, 0, 5)] = 399998;
  rig.predicted.host[0] = 399998;
  rig.predicted.host[1] = 7;
  rig.state.Upload();
  rig.map.Upload();
  rig.predicted.Upload();
  rig.SetRows({0});
  ASSERT_LAUNCHED(
      gpu::Select(rig.shape, rig.mem, rig.rows, true, 2, rig.plan, rig.counters.device(), nullptr));
  ASSERT_CUDA(cudaDeviceSynchronize());
  const auto items = rig.Items();
  ASSERT_EQ(items.size(), 1u);
  EXPECT_EQ(items[0].block, 7);
  EXPECT_EQ(items[0].page, 0);
  EXPECT_EQ(rig.stamps.Download()[5], 1u);
}

TEST(SelectLimitsTest, WhatDoesNotFitIsRefusedByText) {
  gpu::Shape shape;
  shape.resident = 1 << 16;
  EXPECT_THAT(gpu::Select(shape, {}, {}, true, 1, {}, nullptr, nullptr),
              ::testing::HasSubstr("16 bits"));
  shape.resident = 16;
  shape.max_blocks = 10'000'000;
  EXPECT_THAT(gpu::Select(shape, {}, {}, true, 1, {}, nullptr, nullptr),
              ::testing::HasSubstr("shared memory"));
}

}  // namespace
}  // namespace oasiskv
