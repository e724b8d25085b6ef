// What the cuda backend says and does when something is wrong.
#include <chrono>
#include <memory>

#include "gtest/gtest.h"
#include "oasiskv/error.h"
#include "tests/gpu/gpu_drive.h"
#include "tests/gpu/parts_source.h"
#include "tests/gpu/transfer_rig.h"

namespace oasiskv::gpu_test {
namespace {

// One request of 20 blocks, of which 8 are resident, and queries that want others.
class GpuFaultsTest : public testing::Test {
 protected:
  void SetUp() override { OASISKV_NEEDS_GPU(); }

  void Make(LatePolicy late, LossPolicy loss, std::chrono::nanoseconds deadline,
            uint32_t kv_heads = 2) {
    GpuWorkingSetOptions o;
    o.base = OptionsOf(Case{.ratio = 1.0, .kv_heads = kv_heads});
    o.base.geometry.layers = 1;
    o.base.late = late;
    o.base.loss = loss;
    o.base.late_deadline = deadline;
    auto made = GpuWorkingSet::Create(o);
    ASSERT_TRUE(made.ok()) << made.status();
    ws_ = *std::move(made);
    inputs_ = std::make_unique<Inputs>(o.base);
    auto stream = cuda::Stream::Create(0);
    ASSERT_TRUE(stream.ok());
    stream_ = *std::move(stream);
  }
  template <typename Source, typename... More>
  std::shared_ptr<Source> Admit(More... more) {
    auto source = std::make_shared<Source>(ws_->options().base.geometry, 80, 9, more...);
    auto slot = ws_->Admit(source);
    EXPECT_TRUE(slot.ok()) << slot.status();
    if (slot.ok()) slot_ = *slot;
    return source;
  }
  // Returns when the device has done with it.
  void Step() {
    inputs_->Fill(&rng_);
    ASSERT_STATUS_OK(ws_->SetRows({&slot_, 1}, stream_.get()));
    ASSERT_STATUS_OK(ws_->Wait(LayerIndex(0), stream_.get()));
    ASSERT_STATUS_OK(
        ws_->Submit(LayerIndex(0), inputs_->queries(0), GpuQueryType::kFloat32, 0, stream_.get()));
    ASSERT_STATUS_OK(ws_->AttentionDone(LayerIndex(0), stream_.get()));
    Look();
  }
  void Look() {
    auto now = ws_->Snapshot(LayerIndex(0), slot_);
    ASSERT_TRUE(now.ok()) << now.status();
    now_ = *std::move(now);
  }
  // Every page that the map names holds that block.
  void ExpectTrueMap(const FakeSource& source) {
    const Geometry& g = ws_->options().base.geometry;
    const uint32_t k = ws_->options().base.resident_blocks;
    for (uint32_t h = 0; h < g.kv_heads; ++h) {
      for (uint32_t p = 0; p < k; ++p) {
        const int32_t block = now_.map[h * k + p];
        if (block < 0) continue;
        const auto entry = source.kv().Entry(static_cast<uint32_t>(block), 0, h);
        EXPECT_EQ(
            std::memcmp(entry.data(), &now_.pages[(h * (k + 1) + p) * entry.size()], entry.size()),
            0)
            << "head " << h << ", page " << p << ", block " << block;
      }
    }
  }
  WorkingSetStats Stats() {
    auto stats = ws_->Stats();
    EXPECT_TRUE(stats.ok());
    return *stats;
  }

  std::mt19937_64 rng_{3};
  std::unique_ptr<GpuWorkingSet> ws_;
  std::unique_ptr<Inputs> inputs_;
  cuda::Stream stream_;
  RequestSlot slot_;
  GpuSnapshot now_;
};

TEST_F(GpuFaultsTest, AWaitThatPassesItsLimitIsAnErrorAndTheResidentsStay) {
  Make(LatePolicy::kWait, LossPolicy::kFail, std::chrono::milliseconds(100));
  auto source = Admit<FakeSource>();
  Look();
  const auto before = now_.map;
  source->ignore_deadline = true;  // the read itself never ends
  source->Close();
  Step();
  EXPECT_EQ(ErrorCodeOf(ws_->Error()), ErrorCode::kDeadlineExceeded) << ws_->Error();
  EXPECT_EQ(now_.map, before);
  EXPECT_GT(Stats().skipped, 0u);
  ExpectTrueMap(*source);
  source->Open();
  ws_->ClearError();
  EXPECT_TRUE(ws_->Error().ok());
  Step();
  Step();
  EXPECT_TRUE(ws_->Error().ok()) << ws_->Error();
  EXPECT_NE(now_.map, before);
  ExpectTrueMap(*source);
  ASSERT_STATUS_OK(ws_->Leave(slot_));
}

TEST_F(GpuFaultsTest, LateBlocksAreSkippedWithoutAnError) {
  Make(LatePolicy::kSkip, LossPolicy::kFail, std::chrono::milliseconds(50));
  auto source = Admit<FakeSource>();
  source->Close();
  Step();
  EXPECT_TRUE(ws_->Error().ok()) << ws_->Error();
  const WorkingSetStats stats = Stats();
  EXPECT_GT(stats.skipped, 0u);
  EXPECT_EQ(stats.predicted,
            stats.hit + stats.promoted + stats.admitted + stats.refused_by_cap + stats.skipped);
  ExpectTrueMap(*source);
}

// One head, so that both fetch the same: else the GPU holds what it fetched for another one.
TEST_F(GpuFaultsTest, LateBlocksAreCountedAsOnTheCpu) {
  Make(LatePolicy::kSkip, LossPolicy::kFail, std::chrono::milliseconds(200), 1);
  auto source = Admit<FakeSource>();
  auto cpu = WorkingSet::Create(ws_->options().base);
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  auto cpu_source = std::make_shared<FakeSource>(ws_->options().base.geometry, 80, 9);
  auto cpu_slot = (*cpu)->Admit(cpu_source);
  ASSERT_TRUE(cpu_slot.ok()) << cpu_slot.status();
  source->Close();
  cpu_source->Close();
  Step();
  const std::span<const RequestSlot> row(&*cpu_slot, 1);
  ASSERT_STATUS_OK((*cpu)->Submit(LayerIndex(0), row, inputs_->queries(0)));
  ASSERT_STATUS_OK((*cpu)->AttentionDone(LayerIndex(0), row));
  ASSERT_STATUS_OK((*cpu)->Wait(LayerIndex(0), row));
  const WorkingSetStats want = (*cpu)->Stats(), stats = Stats();
  EXPECT_GT(want.late, 0u);
  EXPECT_EQ(stats.late, want.late);
  EXPECT_EQ(stats.skipped, want.skipped);
  EXPECT_EQ(stats.admitted, want.admitted);
  EXPECT_EQ(stats.bytes_used, want.bytes_used);
  source->Open();
  Step();
  Step();
  EXPECT_TRUE(ws_->Error().ok()) << ws_->Error();
  EXPECT_EQ(Stats().late, want.late);
  EXPECT_GT(Stats().bytes_used, 0u);
}

TEST_F(GpuFaultsTest, ALostSourceIsReported) {
  Make(LatePolicy::kWait, LossPolicy::kFail, std::chrono::seconds(60));
  auto source = Admit<FakeSource>();
  source->FailFetches(MakeError(ErrorCode::kPeerLost, "gone"));
  Step();  // ends long before the limit
  EXPECT_EQ(ErrorCodeOf(ws_->Error()), ErrorCode::kPeerLost) << ws_->Error();
  EXPECT_GT(Stats().skipped, 0u);
  EXPECT_EQ(Stats().late, 0u);
  ExpectTrueMap(*source);
}

TEST_F(GpuFaultsTest, ALostSourceIsAskedForItsHealthBeforeItIsReadAgain) {
  Make(LatePolicy::kWait, LossPolicy::kDegrade, std::chrono::seconds(60));
  auto source = Admit<FakeSource>();
  source->FailFetches(MakeError(ErrorCode::kPeerLost, "gone"));
  source->SetHealth(MakeError(ErrorCode::kPeerLost, "gone"));
  Step();
  const int fetches = source->fetches();
  Step();
  Step();
  EXPECT_TRUE(ws_->Error().ok()) << ws_->Error();
  EXPECT_EQ(source->fetches(), fetches);
  EXPECT_GE(Stats().degraded, 2u);
  source->FailFetches(absl::OkStatus());
  source->SetHealth(absl::OkStatus());
  Step();
  EXPECT_GT(source->fetches(), fetches);
  EXPECT_GT(Stats().admitted, 0u);
  ExpectTrueMap(*source);
}

TEST_F(GpuFaultsTest, ABlockCrossesOnce) {
  Make(LatePolicy::kWait, LossPolicy::kFail, std::chrono::seconds(60));
  auto source = Admit<FakeSource>();
  for (int i = 0; i < 30; ++i) Step();
  EXPECT_TRUE(ws_->Error().ok()) << ws_->Error();
  EXPECT_GT(Stats().admitted, 20u * ws_->options().base.geometry.kv_heads);
  EXPECT_LE(source->entries(), static_cast<int>(20 * ws_->options().base.geometry.kv_heads));
}

TEST_F(GpuFaultsTest, AStaleGrantEmptiesThePages) {
  Make(LatePolicy::kWait, LossPolicy::kFail, std::chrono::seconds(60));
  auto source = Admit<LocalSource>();
  Look();
  const auto before = now_.map;
  source->SetWord(LocalSource::kEpoch + 1);
  Step();
  EXPECT_EQ(ErrorCodeOf(ws_->Error()), ErrorCode::kStale) << ws_->Error();
  uint32_t emptied = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(now_.map[i] == before[i] || now_.map[i] == -1) << i;
    emptied += now_.map[i] == -1 ? 1 : 0;
  }
  EXPECT_GT(emptied, 0u);
  EXPECT_EQ(Stats().admitted, 0u);
  ExpectTrueMap(*source);
  // Nor is a new request admitted under such a word.
  auto stale = std::make_shared<LocalSource>(ws_->options().base.geometry, 80, 9);
  stale->SetWord(0);
  EXPECT_EQ(ErrorCodeOf(ws_->Admit(stale).status()), ErrorCode::kStale);
}

TEST_F(GpuFaultsTest, AStaleGrantOfOnePartEmptiesThePages) {
  Make(LatePolicy::kWait, LossPolicy::kFail, std::chrono::seconds(60));
  auto source = Admit<PartsSource>(2u);
  source->SetWord(1, 0);
  Step();
  EXPECT_EQ(ErrorCodeOf(ws_->Error()), ErrorCode::kStale) << ws_->Error();
  EXPECT_EQ(Stats().admitted, 0u);  // of the other part, whose word stands, neither
  ExpectTrueMap(*source);
  const auto stale = ws_->Admit(source);
  EXPECT_EQ(ErrorCodeOf(stale.status()), ErrorCode::kStale) << stale.status();
}

TEST_F(GpuFaultsTest, WrongArgumentsAreRefused) {
  Make(LatePolicy::kWait, LossPolicy::kFail, std::chrono::seconds(60));
  const auto code = [](const absl::Status& status) { return ErrorCodeOf(status); };
  auto source = Admit<LocalSource>();
  cudaStream_t const s = stream_.get();
  float* const q = inputs_->queries(0);
  EXPECT_EQ(code(ws_->Submit(LayerIndex(1), q, GpuQueryType::kFloat32, 0, s)),
            ErrorCode::kOutOfRange);
  EXPECT_EQ(code(ws_->Submit(LayerIndex(0), nullptr, GpuQueryType::kFloat32, 0, s)),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(ws_->Submit(LayerIndex(0), q, GpuQueryType::kFloat32, 5, s)),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(ws_->Submit(LayerIndex(0), q, static_cast<GpuQueryType>(9), 0, s)),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(ws_->SubmitTopK(LayerIndex(0), nullptr, 4, s)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(ws_->Append(LayerIndex(0), q, nullptr, 0, s)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(ws_->Resolve(LayerIndex(0), q, GpuQueryType::kFloat32, 0, GpuMissPolicy::kDrop, s)
                     .status()),
            ErrorCode::kInvalidArgument);
  const RequestSlot rows[] = {slot_, slot_}, free = RequestSlot(3), beyond = RequestSlot(99);
  EXPECT_EQ(code(ws_->SetRows(rows, s)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(ws_->SetRows({&free, 1}, s)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(ws_->Leave(beyond)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(ws_->Admit(nullptr).status()), ErrorCode::kInvalidArgument);
  Geometry other = ws_->options().base.geometry;
  other.block_tokens = 8;
  EXPECT_EQ(code(ws_->Admit(std::make_shared<FakeSource>(other, 80, 1)).status()),
            ErrorCode::kGeometryMismatch);
  ASSERT_EQ(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(code(ws_->SetRows({&slot_, 1}, s)), ErrorCode::kWrongState);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(s, &graph), cudaSuccess);
  cudaGraphDestroy(graph);

  GpuWorkingSetOptions options = ws_->options();
  options.device = 99;
  EXPECT_EQ(code(GpuWorkingSet::Create(options).status()), ErrorCode::kInvalidArgument);
  options = ws_->options();
  options.gather_threads = 100;
  EXPECT_EQ(code(GpuWorkingSet::Create(options).status()), ErrorCode::kInvalidArgument);
  options = ws_->options();
  options.base.geometry.head_dim = 7;
  EXPECT_EQ(code(GpuWorkingSet::Create(options).status()), ErrorCode::kInvalidArgument);
  options = ws_->options();
  options.pages.resize(1);
  EXPECT_EQ(code(GpuWorkingSet::Create(options).status()), ErrorCode::kInvalidArgument);
  options = ws_->options();
  options.base.max_blocks = 20'000;
  options.base.max_requests = 60'000;
  EXPECT_EQ(code(GpuWorkingSet::Create(options).status()), ErrorCode::kCapacity);
  options = ws_->options();
  options.remote_sources = false;
  auto local_only = GpuWorkingSet::Create(options);
  ASSERT_TRUE(local_only.ok()) << local_only.status();
  EXPECT_EQ(code((*local_only)
                     ->Admit(std::make_shared<FakeSource>(options.base.geometry, 80, 1))
                     .status()),
            ErrorCode::kInvalidArgument);
  options = ws_->options();
  options.max_host_bytes = 4096;
  auto tight = GpuWorkingSet::Create(options);
  ASSERT_TRUE(tight.ok()) << tight.status();
  EXPECT_EQ(
      code((*tight)->Admit(std::make_shared<FakeSource>(options.base.geometry, 80, 1)).status()),
      ErrorCode::kCapacity);
}

}  // namespace
}  // namespace oasiskv::gpu_test
