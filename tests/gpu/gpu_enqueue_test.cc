// Steps that follow each other on the GPU with no host between them: nothing runs before all of
// them are enqueued, so that only the working set's own order keeps a layer's transfer from the
// next step. (Elsewhere the tests look at pages after every Wait, which waits for the device.)
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "gtest/gtest.h"
#include "tests/gpu/gpu_drive.h"
#include "tests/gpu/transfer_rig.h"

namespace oasiskv::gpu_test {
namespace {

// Holds a stream until it is opened, or for so long that something is wrong.
class Gate {
 public:
  void Hold(cudaStream_t stream) {
    {
      std::lock_guard lock(mutex_);
      open_ = false;
    }
    ASSERT_EQ(cudaLaunchHostFunc(
                  stream, [](void* self) { static_cast<Gate*>(self)->Pass(); }, this),
              cudaSuccess);
  }
  void Open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    opened_.notify_all();
  }
  bool timed_out() {
    std::lock_guard lock(mutex_);
    return timed_out_;
  }

 private:
  void Pass() {
    std::unique_lock lock(mutex_);
    timed_out_ |= !opened_.wait_for(lock, std::chrono::seconds(30), [this] { return open_; });
  }

  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = true, timed_out_ = false;
};

class GpuEnqueueTest : public testing::TestWithParam<Case> {};

TEST_P(GpuEnqueueTest, ManyStepsEqualThoseOfTheCpuBackend) {
  OASISKV_NEEDS_GPU();
  constexpr int kRounds = 6, kSteps = 8;
  const Case& c = GetParam();
  GpuWorkingSetOptions options;
  options.base = OptionsOf(c);
  const WorkingSetOptions& o = options.base;
  const Geometry& g = o.geometry;
  auto cpu = WorkingSet::Create(o);
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  std::vector<std::unique_ptr<Inputs>> inputs;
  inputs.reserve(kSteps);
  for (int i = 0; i < kSteps; ++i) inputs.push_back(std::make_unique<Inputs>(o));
  auto stream = cuda::Stream::Create(0);
  ASSERT_TRUE(stream.ok()) << stream.status();
  cudaStream_t const s = stream->get();
  Gate gate;
  auto made = GpuWorkingSet::Create(options);
  ASSERT_TRUE(made.ok()) << made.status();
  GpuWorkingSet& gpu = **made;

  std::vector<RequestSlot> rows;
  std::vector<std::shared_ptr<FakeSource>> sources;
  std::vector<uint64_t> next_token;
  for (uint64_t tokens : {7, 61, 160}) {
    std::shared_ptr<FakeSource> source = std::make_shared<FakeSource>(g, tokens, tokens);
    if (c.where == Where::kLocal) source = std::make_shared<LocalSource>(g, tokens, tokens);
    auto slot = gpu.Admit(source);
    auto same = (*cpu)->Admit(std::make_shared<FakeSource>(g, tokens, tokens));
    ASSERT_TRUE(slot.ok() && same.ok()) << slot.status() << same.status();
    ASSERT_EQ(*slot, *same);
    rows.push_back(*slot);
    sources.push_back(source);
    next_token.push_back(tokens);
  }
  ASSERT_STATUS_OK(gpu.SetRows(rows, s));

  const bool exact = o.mode == SelectionMode::kExact;
  std::mt19937_64 rng(12);
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    for (const auto& in : inputs) {
      in->Fill(&rng);
      for (size_t r = 0; r < rows.size(); ++r) {
        for (uint32_t l = 0; l < g.layers; ++l) {
          const auto key = sources[r]->kv().Token(next_token[r], l, Half::kKey);
          const auto value = sources[r]->kv().Token(next_token[r], l, Half::kValue);
          std::memcpy(in->keys(l) + r * in->row_bytes(), key.data(), key.size());
          std::memcpy(in->values(l) + r * in->row_bytes(), value.data(), value.size());
        }
        ++next_token[r];
      }
    }
    // The first round loads the kernels, for which the driver may want a device that is idle.
    if (round > 0) gate.Hold(s);
    for (const auto& in : inputs) {
      for (uint32_t l = 0; l < g.layers; ++l) {
        const LayerIndex layer(l);
        ASSERT_STATUS_OK(gpu.Wait(layer, s));
        ASSERT_STATUS_OK(gpu.Append(layer, in->keys(l), in->values(l), 0, s));
        if (exact) {
          ASSERT_STATUS_OK(
              gpu.Resolve(layer, in->truth(l), GpuQueryType::kFloat32, 0, GpuMissPolicy::kDemand, s)
                  .status());
        }
        ASSERT_STATUS_OK(gpu.Submit(layer, in->queries(l), GpuQueryType::kFloat32, 0, s));
        ASSERT_STATUS_OK(gpu.AttentionDone(layer, s));
      }
      ASSERT_STATUS_OK(gpu.EndStep(s));
    }
    gate.Open();
    for (const auto& in : inputs) {
      for (uint32_t l = 0; l < g.layers; ++l) {
        const LayerIndex layer(l);
        ASSERT_STATUS_OK((*cpu)->Wait(layer, rows));
        ASSERT_STATUS_OK((*cpu)->Append(layer, rows, in->keys(l), in->values(l)));
        if (exact) {
          ASSERT_STATUS_OK((*cpu)->Resolve(layer, rows, in->truth(l)));
        }
        ASSERT_STATUS_OK((*cpu)->Submit(layer, rows, in->queries(l)));
        ASSERT_STATUS_OK((*cpu)->AttentionDone(layer, rows));
      }
    }
    for (size_t r = 0; r < rows.size(); ++r) {
      for (uint32_t l = 0; l < g.layers; ++l) {
        SCOPED_TRACE("row " + std::to_string(r) + ", layer " + std::to_string(l));
        ASSERT_STATUS_OK((*cpu)->Wait(LayerIndex(l), {&rows[r], 1}));
        auto view = (*cpu)->View(LayerIndex(l), rows[r]);
        auto shot = gpu.Snapshot(LayerIndex(l), rows[r]);
        ASSERT_TRUE(view.ok() && shot.ok()) << view.status() << shot.status();
        const uint32_t k = o.resident_blocks;
        ASSERT_EQ(std::vector<int32_t>(view->map, view->map + g.kv_heads * k), shot->map);
        ASSERT_EQ(view->local_block.value(), shot->state.complete);
        ASSERT_EQ(view->local_tokens, shot->state.local_tokens);
        for (uint32_t i = 0; i < g.kv_heads * k; ++i) {
          if (shot->map[i] < 0) continue;
          const size_t at = (i / k * (k + 1) + i % k) * g.entry_bytes();
          ASSERT_EQ(std::memcmp(view->pages + at, &shot->pages[at], g.entry_bytes()), 0) << i;
        }
      }
    }
    EXPECT_FALSE(gate.timed_out());
    ASSERT_STATUS_OK(gpu.Error());
  }
  const WorkingSetStats want = (*cpu)->Stats();
  auto stats = gpu.Stats();
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(stats->predicted, want.predicted);
  EXPECT_EQ(stats->hit, want.hit);
  EXPECT_EQ(stats->admitted, want.admitted);
  EXPECT_EQ(stats->demanded, want.demanded);
  EXPECT_EQ(stats->promoted, want.promoted);
  EXPECT_EQ(stats->refused_by_cap, want.refused_by_cap);
  EXPECT_EQ(stats->bytes_used, want.bytes_used);
  EXPECT_GT(stats->admitted, 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, GpuEnqueueTest,
    testing::Values(Case{.name = "local", .ratio = 0.5},
                    Case{.name = "remote", .ratio = 0.5, .where = Where::kRemote},
                    Case{.name = "exact", .mode = SelectionMode::kExact, .ratio = 0.5},
                    Case{.name = "exact_remote",
                         .mode = SelectionMode::kExact,
                         .ratio = 0.5,
                         .where = Where::kRemote}),
    [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace oasiskv::gpu_test
