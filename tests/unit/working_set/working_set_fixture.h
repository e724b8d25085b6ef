// A small working set, so that a test can work out its plans by hand.
#pragma once

#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "common/pause_point.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "oasiskv/error.h"
#include "oasiskv/working_set.h"
#include "tests/unit/working_set/working_set_fake.h"

namespace oasiskv {

// Two layers, one KV head, blocks of two tokens, K = 4. A request of 20 tokens begins with blocks
// 6 7 8 9 in pages 0 to 3.
class WorkingSetFixture : public testing::Test {
 protected:
  WorkingSetFixture() {
    o_.geometry = {.layers = 2,
                   .kv_heads = 1,
                   .head_dim = 4,
                   .block_tokens = 2,
                   .element_type = ElementType::kFloat32,
                   .total_kv_heads = 1};
    o_.query_heads = 2;
    o_.resident_blocks = 4;
    o_.fetch_ratio = 1.0;
    o_.max_requests = 3;
    o_.max_blocks = 32;
  }
  ~WorkingSetFixture() override { EXPECT_EQ(PausePoints::Waiting(), 0); }

  void Make() {
    auto made = WorkingSet::Create(o_);
    ASSERT_TRUE(made.ok()) << made.status();
    ws_ = *std::move(made);
  }
  RequestSlot Admit(uint64_t tokens = 20) {
    sources_.push_back(std::make_shared<FakeSource>(o_.geometry, tokens, sources_.size() + 1));
    return Admit(sources_.back());
  }
  RequestSlot Admit(const std::shared_ptr<FakeSource>& source) {
    const auto slot = ws_->Admit(source);
    EXPECT_TRUE(slot.ok()) << slot.status();
    if (slots_.size() <= slot->value()) slots_.resize(slot->value() + 1);
    slots_[slot->value()] = source;
    return *slot;
  }

  absl::Status Append(RequestSlot slot, uint32_t layer = 0) {
    const auto view = ws_->View(LayerIndex(layer), slot);
    if (!view.ok()) return view.status();
    const uint64_t token =
        uint64_t{view->local_block.value()} * o_.geometry.block_tokens + view->local_tokens;
    const auto keys = slots_[slot.value()]->kv().Token(token, layer, Half::kKey);
    const auto values = slots_[slot.value()]->kv().Token(token, layer, Half::kValue);
    return ws_->Append(LayerIndex(layer), {&slot, 1}, keys.data(), values.data());
  }
  absl::Status Submit(std::vector<RequestSlot> slots, const std::vector<int32_t>& list,
                      uint32_t layer = 0) {
    std::vector<int32_t> all;
    for (size_t i = 0; i < slots.size(); ++i) all.insert(all.end(), list.begin(), list.end());
    return ws_->SubmitTopK(LayerIndex(layer), slots, all.data(), list.size());
  }
  absl::Status Done(std::vector<RequestSlot> slots, uint32_t layer = 0) {
    return ws_->AttentionDone(LayerIndex(layer), slots);
  }
  absl::Status Wait(std::vector<RequestSlot> slots, uint32_t layer = 0) {
    return ws_->Wait(LayerIndex(layer), slots);
  }
  // A whole step between two Waits.
  absl::Status Step(RequestSlot slot, const std::vector<int32_t>& list) {
    if (auto s = Submit({slot}, list); !s.ok()) return s;
    if (auto s = Done({slot}); !s.ok()) return s;
    return Wait({slot});
  }
  absl::Status Resolve(RequestSlot slot) {
    const std::vector<float> queries(o_.query_heads * o_.geometry.head_dim, 1.0f);
    return ws_->Resolve(LayerIndex(0), {&slot, 1}, queries.data());
  }

  // The map, after checking that every page holds what the map says.
  std::vector<int32_t> Map(RequestSlot slot, uint32_t layer = 0) {
    const auto view = ws_->View(LayerIndex(layer), slot);
    EXPECT_TRUE(view.ok()) << view.status();
    if (!view.ok()) return {};
    return MapOf(*view, slot, layer);
  }
  std::vector<int32_t> MapOf(const ResidentView& view, RequestSlot slot, uint32_t layer = 0) {
    const size_t bytes = o_.geometry.entry_bytes();
    std::vector<int32_t> map(view.map, view.map + o_.resident_blocks);
    for (size_t p = 0; p < map.size(); ++p) {
      if (map[p] < 0) continue;
      const auto entry = slots_[slot.value()]->kv().Entry(map[p], layer, 0);
      EXPECT_EQ(std::memcmp(view.pages + p * bytes, entry.data(), bytes), 0)
          << "page " << p << " is not block " << map[p];
    }
    return map;
  }

  WorkingSetOptions o_;
  std::unique_ptr<WorkingSet> ws_;
  std::vector<std::shared_ptr<FakeSource>> sources_;
  std::vector<std::shared_ptr<FakeSource>> slots_;
};

}  // namespace oasiskv
