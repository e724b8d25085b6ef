// Random small configurations against the model: maps, page contents and statistics after every
// step, whatever the timing of the stages.
#include <array>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "oasiskv/working_set.h"
#include "tests/unit/working_set/working_set_fake.h"
#include "tests/unit/working_set/working_set_model.h"

namespace oasiskv {
namespace {

// One working set and one model per request, driven side by side.
class RandomDrive {
 public:
  RandomDrive(uint64_t seed, bool delays) : rng_(seed), delays_(delays) {
    Geometry g;
    g.packing = rng_() % 4 == 0 ? Packing::kLatent : Packing::kKeyThenValue;
    g.layers = 1 + rng_() % 3;
    g.kv_heads = g.packing == Packing::kLatent ? 1 : 1 + rng_() % 3;
    g.total_kv_heads = g.kv_heads;
    g.head_dim = 1 + rng_() % 20;
    g.block_tokens = 1 + rng_() % 4;
    g.element_type = static_cast<ElementType>(1 + rng_() % 3);
    if (rng_() % 4 == 0) {
      o_.summaries = SummaryType::kFloat8;
      g.head_dim = 16;
    }
    o_.geometry = g;
    o_.query_heads = g.kv_heads * (1 + rng_() % 5);
    o_.resident_blocks = 1 + rng_() % 10;
    o_.ranked_blocks = rng_() % 2 == 0 ? 0 : 1 + rng_() % o_.resident_blocks;
    o_.fetch_ratio = std::array{0.0, 0.1, 0.25, 0.5, 1.0}[rng_() % 5];
    o_.mode = rng_() % 2 == 0 ? SelectionMode::kCapped : SelectionMode::kExact;
    o_.combine = static_cast<GroupCombine>(rng_() % 4);
    o_.bound_weight = std::array{1.0, 0.5, 0.0}[rng_() % 3];
    o_.max_requests = 1 + rng_() % 3;
    o_.max_blocks = 100;
    o_.late_deadline = std::chrono::minutes(10);
    auto made = WorkingSet::Create(o_);
    EXPECT_TRUE(made.ok()) << made.status();
    ws_ = *std::move(made);
    requests_.resize(o_.max_requests);
  }

  void Steps(int steps) {
    for (int i = 0; i < steps && !testing::Test::HasFailure(); ++i) {
      Churn();
      std::vector<RequestSlot> slots;
      for (uint32_t s = 0; s < requests_.size(); ++s) {
        if (requests_[s] && rng_() % 8 != 0) slots.push_back(RequestSlot(s));
      }
      std::shuffle(slots.begin(), slots.end(), rng_);
      for (uint32_t l = 0; l < o_.geometry.layers; ++l) Step(l, slots);
    }
    // Requests that skipped the last steps have a transfer pending.
    for (uint32_t s = 0; s < requests_.size(); ++s) {
      if (!requests_[s]) continue;
      for (uint32_t l = 0; l < o_.geometry.layers; ++l) {
        const RequestSlot slot(s);
        ASSERT_TRUE(ws_->Wait(LayerIndex(l), {&slot, 1}).ok());
        requests_[s]->model.Wait(l);
        Check(l, slot);
      }
    }
  }

  std::string Describe() const {
    return o_.geometry.ToString() + ", K " + std::to_string(o_.resident_blocks) + ", ranked " +
           std::to_string(o_.ranked_blocks) + ", ratio " + std::to_string(o_.fetch_ratio) +
           (o_.mode == SelectionMode::kExact ? ", exact" : "") +
           (o_.summaries == SummaryType::kFloat8 ? ", float8" : "");
  }
  // Every map that was seen, in order: the plans.
  const std::vector<int32_t>& history() const { return history_; }
  WorkingSetStats total() const { return ws_->Stats(); }

 private:
  struct Request {
    std::shared_ptr<FakeSource> source;
    RequestModel model;
  };

  void Churn() {
    for (uint32_t s = 0; s < requests_.size(); ++s) {
      if (requests_[s] && rng_() % 20 == 0) {
        EXPECT_EQ(requests_[s]->source->wrong(), "");
        const std::weak_ptr<FakeSource> source = requests_[s]->source;
        ASSERT_TRUE(ws_->Leave(RequestSlot(s)).ok());
        requests_[s].reset();
        EXPECT_TRUE(source.expired()) << "Leave keeps the source";
      }
    }
    const auto free = std::find(requests_.begin(), requests_.end(), std::nullopt);
    if (free == requests_.end() || rng_() % 3 != 0) return;
    const Geometry& g = o_.geometry;
    const uint64_t tokens = rng_() % (20 * g.block_tokens), seed = rng_();
    // Keys that are not exact in the summaries' type.
    const uint32_t grain = o_.summaries == SummaryType::kFloat8 ? 32 : 1;
    auto source = std::make_shared<FakeSource>(g, tokens, seed, grain);
    source->polls = rng_() % 3;
    if (delays_) source->delay_us = 300;
    source->keeps_fetched = rng_() % 2 == 0;
    const uint32_t blocks = g.BlocksFor(source->token_count());
    if (blocks > 0 && rng_() % 2 == 0) {
      source->first_k = 1 + rng_() % 8;
      for (uint32_t i = 0; i < g.layers * g.kv_heads * source->first_k; ++i) {
        source->first.push_back(static_cast<int32_t>(rng_() % (blocks + 1)) - 1);
      }
    }
    const auto slot = ws_->Admit(source);
    ASSERT_TRUE(slot.ok()) << slot.status();
    ASSERT_EQ(slot->value(), free - requests_.begin());
    free->emplace(Request{source, RequestModel(o_, *source)});
    for (uint32_t l = 0; l < g.layers; ++l) Check(l, *slot);
  }

  std::vector<float> Queries(size_t rows) {
    std::vector<float> q(rows * o_.query_heads * o_.geometry.head_dim);
    const int kind = rng_() % 8;
    for (float& x : q) {
      x = static_cast<float>(static_cast<int>(rng_() % 5) - 2);
      if (kind == 0) x = rng_() % 2 == 0 ? 0.0f : -0.0f;
      if (kind == 1 && rng_() % 6 == 0) {
        x = std::array{std::numeric_limits<float>::quiet_NaN(),
                       std::numeric_limits<float>::infinity(),
                       -std::numeric_limits<float>::infinity()}[rng_() % 3];
      }
    }
    return q;
  }

  void Step(uint32_t l, const std::vector<RequestSlot>& slots) {
    const Geometry& g = o_.geometry;
    const LayerIndex layer(l);
    const size_t each = size_t{o_.query_heads} * g.head_dim;
    ASSERT_TRUE(ws_->Wait(layer, slots).ok());
    for (RequestSlot s : slots) Model(s).Wait(l);

    std::vector<std::byte> keys, values;
    bool fits = true;
    for (RequestSlot s : slots) {
      const FakeKv& kv = requests_[s.value()]->source->kv();
      const auto k = kv.Token(Model(s).next_token(l), l, Half::kKey);
      const auto v = kv.Token(Model(s).next_token(l), l, Half::kValue);
      keys.insert(keys.end(), k.begin(), k.end());
      values.insert(values.end(), v.begin(), v.end());
      fits = fits && Model(s).complete(l) < o_.max_blocks;
    }
    if (fits) {
      ASSERT_TRUE(ws_->Append(layer, slots, keys.data(), values.data()).ok());
      for (RequestSlot s : slots) Model(s).Append(l);
    }

    const std::vector<float> truth = Queries(slots.size());
    if (o_.mode == SelectionMode::kExact) {
      ASSERT_TRUE(ws_->Resolve(layer, slots, truth.data()).ok());
      for (size_t i = 0; i < slots.size(); ++i) {
        Model(slots[i]).Resolve(l, &truth[i * each]);
        CheckExact(l, slots[i], &truth[i * each]);
      }
    } else if (rng_() % 2 == 0) {
      ASSERT_TRUE(ws_->SampleAgreement(layer, slots, truth.data()).ok());
      for (size_t i = 0; i < slots.size(); ++i) Model(slots[i]).Sample(l, &truth[i * each]);
    }

    const int how = rng_() % 8;
    if (how == 0) {  // nothing is submitted
    } else if (how == 1) {
      SubmitLists(l, slots);
    } else {
      const std::vector<float> q = Queries(slots.size());
      ASSERT_TRUE(ws_->Submit(layer, slots, q.data()).ok());
      for (size_t i = 0; i < slots.size(); ++i) {
        Model(slots[i]).Submit(l, &q[i * each], nullptr);
      }
    }
    for (RequestSlot s : slots) Check(l, s);
    ASSERT_TRUE(ws_->AttentionDone(layer, slots).ok());
    for (RequestSlot s : slots) Model(s).AttentionDone(l);
  }

  void SubmitLists(uint32_t l, const std::vector<RequestSlot>& slots) {
    const uint32_t k = rng_() % (o_.resident_blocks + 3);
    std::vector<int32_t> lists;
    for (RequestSlot s : slots) {
      const uint32_t candidates = Model(s).complete(l) + (Model(s).full(l) ? 1 : 0);
      std::vector<std::vector<int32_t>> expected(o_.geometry.kv_heads);
      for (auto& head : expected) {
        for (uint32_t i = 0; i < k; ++i) {
          const int32_t b = static_cast<int32_t>(rng_() % (candidates + 1)) - 1;
          lists.push_back(b);
          if (b >= 0 && head.size() < o_.resident_blocks &&
              std::find(head.begin(), head.end(), b) == head.end()) {
            head.push_back(b);
          }
        }
      }
      Model(s).Submit(l, nullptr, &expected);
    }
    lists.push_back(0);  // never read
    ASSERT_TRUE(ws_->SubmitTopK(LayerIndex(l), slots, lists.data(), k).ok());
  }

  RequestModel& Model(RequestSlot slot) { return requests_[slot.value()]->model; }

  // Exact mode's promise, without the model's bookkeeping.
  void CheckExact(uint32_t l, RequestSlot slot, const float* queries) {
    const auto view = ws_->View(LayerIndex(l), slot);
    ASSERT_TRUE(view.ok());
    const uint32_t k = o_.resident_blocks;
    for (uint32_t h = 0; h < o_.geometry.kv_heads; ++h) {
      std::multiset<int32_t> resident(view->map + h * k, view->map + (h + 1) * k);
      resident.erase(-1);
      const auto top = Model(slot).TopK(l, h, Model(slot).complete(l), queries);
      const std::multiset<int32_t> wanted(top.begin(), top.end());
      if (o_.ranked_blocks == 0) {
        ASSERT_EQ(resident, wanted);
      } else {  // blocks that were ranked before are there too
        ASSERT_TRUE(std::includes(resident.begin(), resident.end(), wanted.begin(), wanted.end()));
      }
    }
  }

  void Check(uint32_t l, RequestSlot slot) {
    const Geometry& g = o_.geometry;
    const Request& request = *requests_[slot.value()];
    const auto view = ws_->View(LayerIndex(l), slot);
    ASSERT_TRUE(view.ok()) << view.status();
    ASSERT_EQ(reinterpret_cast<uintptr_t>(view->pages) % 64, 0u);
    const uint32_t k = o_.resident_blocks;
    const std::vector<int32_t> map(view->map, view->map + g.kv_heads * k);
    ASSERT_EQ(map, request.model.Map(l)) << "layer " << l << " slot " << slot;
    history_.insert(history_.end(), map.begin(), map.end());
    ASSERT_EQ(view->local_tokens, request.model.local_tokens(l));
    ASSERT_EQ(view->local_block.value(), request.model.complete(l));
    for (uint32_t h = 0; h < g.kv_heads; ++h) {
      const std::byte* pages = view->pages + h * (k + 1) * g.entry_bytes();
      for (uint32_t p = 0; p < k; ++p) {
        if (map[h * k + p] < 0) continue;
        const auto entry = request.source->kv().Entry(map[h * k + p], l, h);
        ASSERT_EQ(std::memcmp(pages + p * g.entry_bytes(), entry.data(), entry.size()), 0)
            << "layer " << l << " head " << h << " page " << p << " is not block "
            << map[h * k + p];
      }
      const auto local = request.source->kv().Entry(view->local_block.value(), l, h);
      const std::byte* page = pages + k * g.entry_bytes();
      const size_t valid = view->local_tokens * g.key_bytes();
      ASSERT_EQ(std::memcmp(page, local.data(), valid), 0);
      if (g.packing == Packing::kKeyThenValue) {
        const size_t half = g.half_entry_bytes();
        ASSERT_EQ(std::memcmp(page + half, local.data() + half, valid), 0);
      }
    }
    if (l + 1 == g.layers) CheckStats(slot);
  }

  void CheckStats(RequestSlot slot) {
    // The model counts in Submit, the library in Wait: settle first.
    const WorkingSetStats got = ws_->RequestStats(slot);
    const WorkingSetStats& want = requests_[slot.value()]->model.stats;
    EXPECT_EQ(got.steps, want.steps);
    EXPECT_EQ(got.admitted, want.admitted);
    EXPECT_EQ(got.promoted, want.promoted);
    EXPECT_EQ(got.demanded, want.demanded);
    EXPECT_EQ(got.bytes_moved, want.bytes_moved);
    EXPECT_EQ(got.bytes_used, want.bytes_used);
    EXPECT_EQ(got.admission_bytes, want.admission_bytes);
    EXPECT_EQ(got.agreement_samples, want.agreement_samples);
    EXPECT_NEAR(got.agreement_sum, want.agreement_sum, 1e-9);  // summed in another order
    EXPECT_EQ(got.skipped + got.degraded, 0u);
    // Every predicted block is one of these.
    EXPECT_LE(got.hit + got.refused_by_cap + got.admitted, got.predicted);
    EXPECT_EQ(requests_[slot.value()]->source->wrong(), "");
  }

 public:
  // Valid after Steps: nothing is pending.
  void CheckSettledStats() {
    for (uint32_t s = 0; s < requests_.size(); ++s) {
      if (!requests_[s]) continue;
      const WorkingSetStats got = ws_->RequestStats(RequestSlot(s));
      const WorkingSetStats& want = requests_[s]->model.stats;
      EXPECT_EQ(got.predicted, want.predicted);
      EXPECT_EQ(got.hit, want.hit);
      EXPECT_EQ(got.refused_by_cap, want.refused_by_cap);
    }
  }

 private:
  std::mt19937 rng_;
  const bool delays_;
  WorkingSetOptions o_;
  std::unique_ptr<WorkingSet> ws_;
  std::vector<std::optional<Request>> requests_;
  std::vector<int32_t> history_;
};

TEST(WorkingSetRandomTest, AgreesWithTheModelIn200Configurations) {
  WorkingSetStats sum;
  for (uint64_t seed = 1; seed <= 200 && !testing::Test::HasFailure(); ++seed) {
    RandomDrive run(seed, false);
    run.Steps(50);
    run.CheckSettledStats();
    if (testing::Test::HasFailure()) ADD_FAILURE() << "seed " << seed << ": " << run.Describe();
    const WorkingSetStats total = run.total();
    sum.admitted += total.admitted;
    sum.refused_by_cap += total.refused_by_cap;
    sum.promoted += total.promoted;
    sum.demanded += total.demanded;
    sum.agreement_samples += total.agreement_samples;
  }
  // The configurations have covered what they are for.
  EXPECT_GT(sum.admitted, 1000u);
  EXPECT_GT(sum.refused_by_cap, 1000u);
  EXPECT_GT(sum.promoted, 1000u);
  EXPECT_GT(sum.demanded, 1000u);
  EXPECT_GT(sum.agreement_samples, 1000u);
}

TEST(WorkingSetRandomTest, EqualInputsGiveEqualPlansWhateverTheTiming) {
  for (uint64_t seed = 1; seed <= 12 && !testing::Test::HasFailure(); ++seed) {
    RandomDrive fast(seed, false);
    RandomDrive slow(seed, true);
    fast.Steps(25);
    slow.Steps(25);
    EXPECT_EQ(fast.history(), slow.history());
  }
}

}  // namespace
}  // namespace oasiskv
