// What is said when slots, rows, blocks or new tokens run out, and that the rest goes on.
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "oasiskv/error.h"
#include "tests/gpu/gpu_drive.h"
#include "tests/gpu/transfer_rig.h"

namespace oasiskv::gpu_test {
namespace {

using testing::HasSubstr;

// One layer, blocks of 4 tokens.
class GpuLimitsTest : public testing::Test {
 protected:
  void SetUp() override { OASISKV_NEEDS_GPU(); }

  static GpuWorkingSetOptions Options() {
    GpuWorkingSetOptions o;
    o.base = OptionsOf(Case{.ratio = 1.0});
    o.base.geometry.layers = 1;
    return o;
  }
  void Make(const GpuWorkingSetOptions& options) {
    auto made = GpuWorkingSet::Create(options);
    ASSERT_TRUE(made.ok()) << made.status();
    ws_ = *std::move(made);
    inputs_ = std::make_unique<Inputs>(options.base);
    auto stream = cuda::Stream::Create(0);
    ASSERT_TRUE(stream.ok()) << stream.status();
    stream_ = *std::move(stream);
  }
  template <typename Source = LocalSource>
  absl::StatusOr<RequestSlot> Admit(uint64_t tokens) {
    source_ = std::make_shared<Source>(ws_->options().base.geometry, tokens, 7);
    next_token_ = tokens;
    return ws_->Admit(source_);
  }
  void Append() {
    const auto key = source_->kv().Token(next_token_, 0, Half::kKey);
    const auto value = source_->kv().Token(next_token_++, 0, Half::kValue);
    std::memcpy(inputs_->keys(0), key.data(), key.size());
    std::memcpy(inputs_->values(0), value.data(), value.size());
    ASSERT_STATUS_OK(
        ws_->Append(LayerIndex(0), inputs_->keys(0), inputs_->values(0), 0, stream_.get()));
  }
  // Decodes one token; returns when the device has done with it.
  void Decode(RequestSlot slot) {
    inputs_->Fill(&rng_);
    ASSERT_STATUS_OK(ws_->SetRows({&slot, 1}, stream_.get()));
    ASSERT_STATUS_OK(ws_->Wait(LayerIndex(0), stream_.get()));
    Append();
    ASSERT_STATUS_OK(
        ws_->Submit(LayerIndex(0), inputs_->queries(0), GpuQueryType::kFloat32, 0, stream_.get()));
    ASSERT_STATUS_OK(ws_->AttentionDone(LayerIndex(0), stream_.get()));
    Look(slot);
  }
  void Look(RequestSlot slot) {
    auto now = ws_->Snapshot(LayerIndex(0), slot);
    ASSERT_TRUE(now.ok()) << now.status();
    now_ = *std::move(now);
  }
  void ExpectError(ErrorCode code, const std::string& text) {
    const absl::Status error = ws_->Error();
    EXPECT_EQ(ErrorCodeOf(error), code) << error;
    EXPECT_THAT(std::string(error.message()), HasSubstr(text));
    ws_->ClearError();
    EXPECT_TRUE(ws_->Error().ok()) << ws_->Error();
  }
  // Every page that the map names holds that block.
  void ExpectTrueMap() {
    const uint32_t k = ws_->options().base.resident_blocks;
    for (uint32_t i = 0; i < now_.map.size(); ++i) {
      if (now_.map[i] < 0) continue;
      const auto entry = source_->kv().Entry(static_cast<uint32_t>(now_.map[i]), 0, i / k);
      EXPECT_EQ(std::memcmp(&now_.pages[(i / k * (k + 1) + i % k) * entry.size()], entry.data(),
                            entry.size()),
                0)
          << "page " << i << ", block " << now_.map[i];
    }
  }
  template <typename Source>
  void RunOutOfNewTokens();

  std::mt19937_64 rng_{3};
  std::unique_ptr<GpuWorkingSet> ws_;
  std::unique_ptr<Inputs> inputs_;
  cuda::Stream stream_;
  std::shared_ptr<FakeSource> source_;
  uint64_t next_token_ = 0;
  GpuSnapshot now_;
};

TEST_F(GpuLimitsTest, Slots) {
  GpuWorkingSetOptions options = Options();
  options.base.max_requests = 2;
  Make(options);
  auto one = Admit(30), two = Admit(40);
  ASSERT_TRUE(one.ok() && two.ok()) << one.status() << two.status();
  const auto third = Admit(50);
  EXPECT_EQ(ErrorCodeOf(third.status()), ErrorCode::kCapacity) << third.status();
  EXPECT_THAT(std::string(third.status().message()), HasSubstr("all 2 request slots"));
  ASSERT_STATUS_OK(ws_->Leave(*one));
  const auto again = Admit(50);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, *one);
  Decode(*again);
  EXPECT_TRUE(ws_->Error().ok()) << ws_->Error();
  ExpectTrueMap();
}

TEST_F(GpuLimitsTest, Rows) {
  GpuWorkingSetOptions options = Options();
  options.max_rows = 1;
  Make(options);
  EXPECT_EQ(ws_->Rows().max_rows, 1u);
  auto one = Admit(30), two = Admit(40);
  ASSERT_TRUE(one.ok() && two.ok()) << one.status() << two.status();
  const RequestSlot both[] = {*one, *two};
  const absl::Status refused = ws_->SetRows(both, stream_.get());
  EXPECT_EQ(ErrorCodeOf(refused), ErrorCode::kInvalidArgument) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("max_rows is 1"));
  Decode(*two);  // one at a time they may
  EXPECT_EQ(now_.state.local_tokens, 1u);
  options.max_rows = options.base.max_requests + 1;
  EXPECT_EQ(ErrorCodeOf(GpuWorkingSet::Create(options).status()), ErrorCode::kInvalidArgument);
}

TEST_F(GpuLimitsTest, Blocks) {
  GpuWorkingSetOptions options = Options();
  options.base.max_blocks = 21;
  Make(options);
  const auto beyond = Admit(85);
  EXPECT_EQ(ErrorCodeOf(beyond.status()), ErrorCode::kCapacity) << beyond.status();
  EXPECT_THAT(std::string(beyond.status().message()), HasSubstr("max_blocks 21"));
  auto slot = Admit(83);  // one token of the last block is open
  ASSERT_TRUE(slot.ok()) << slot.status();
  Decode(*slot);
  EXPECT_TRUE(ws_->Error().ok()) << ws_->Error();
  EXPECT_EQ(now_.state.complete, 21u);
  EXPECT_EQ(now_.state.local_tokens, 0u);
  Decode(*slot);
  ExpectError(ErrorCode::kCapacity, "max_blocks (21)");
  EXPECT_EQ(now_.state.complete, 21u);
  EXPECT_EQ(now_.state.local_tokens, 0u);  // the token was not stored
  ExpectTrueMap();
  auto other = Admit(10);
  ASSERT_TRUE(other.ok()) << other.status();
  Decode(*other);
  EXPECT_TRUE(ws_->Error().ok()) << ws_->Error();
  EXPECT_EQ(now_.state.local_tokens, 3u);
}

TEST_F(GpuLimitsTest, TheLocalBlock) {
  Make(Options());
  auto slot = Admit(80);
  ASSERT_TRUE(slot.ok()) << slot.status();
  ASSERT_STATUS_OK(ws_->SetRows({&*slot, 1}, stream_.get()));
  for (int i = 0; i < 5; ++i) {
    Append();
    Look(*slot);  // the token may be overwritten
    if (i < 4) {
      EXPECT_TRUE(ws_->Error().ok()) << ws_->Error();
    }
  }
  ExpectError(ErrorCode::kCapacity, "AttentionDone and Wait promote it");
  EXPECT_EQ(now_.state.local_tokens, 4u);
}

template <typename Source>
void GpuLimitsTest::RunOutOfNewTokens() {
  GpuWorkingSetOptions options = Options();
  options.max_new_tokens = 6;
  Make(options);
  auto slot = Admit<Source>(80);
  ASSERT_TRUE(slot.ok()) << slot.status();
  for (int i = 0; i < 7; ++i) {
    Decode(*slot);
    ASSERT_STATUS_OK(ws_->Error());
  }
  EXPECT_EQ(now_.state.complete, 21u);
  EXPECT_EQ(now_.state.local_tokens, 3u);
  ExpectTrueMap();
  Decode(*slot);  // completes a block that has no place to go
  ExpectError(ErrorCode::kCapacity, "max_new_tokens (6)");
  ExpectTrueMap();
}

TEST_F(GpuLimitsTest, NewTokens) { RunOutOfNewTokens<LocalSource>(); }
TEST_F(GpuLimitsTest, NewTokensOfARemoteSource) { RunOutOfNewTokens<FakeSource>(); }

}  // namespace
}  // namespace oasiskv::gpu_test
