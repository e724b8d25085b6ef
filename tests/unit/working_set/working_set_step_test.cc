// What a step does: cap, victims, promotion, admission, statistics, and calls out of order.
#include <limits>
#include <memory>
#include <vector>

#include "tests/unit/working_set/working_set_fixture.h"

namespace oasiskv {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class WorkingSetStepTest : public WorkingSetFixture {};

TEST_F(WorkingSetStepTest, CapAdmitsTheBestAndRefusesTheRest) {
  o_.fetch_ratio = 0.5;
  Make();
  EXPECT_EQ(ws_->fetch_cap(), 2u);
  const RequestSlot slot = Admit();
  ASSERT_THAT(Map(slot), ElementsAre(6, 7, 8, 9));
  ASSERT_TRUE(Step(slot, {3, 7, 1, 2}).ok());
  EXPECT_THAT(Map(slot), ElementsAre(3, 7, 1, 9));
  const WorkingSetStats stats = ws_->Stats();
  EXPECT_EQ(stats.predicted, 4u);
  EXPECT_EQ(stats.hit, 1u);
  EXPECT_EQ(stats.admitted, 2u);
  EXPECT_EQ(stats.refused_by_cap, 1u);
  EXPECT_EQ(stats.bytes_moved, 2u * o_.geometry.entry_bytes());
}

TEST_F(WorkingSetStepTest, CapIsTheFloorOfRatioTimesK) {
  o_.max_blocks = 200;
  for (auto [ratio, k, cap] : {std::tuple{0.05, 128u, 6u},
                               {0.29, 100u, 29u},
                               {0.0, 4u, 0u},
                               {1.0, 7u, 7u},
                               {0.99, 1u, 0u}}) {
    o_.fetch_ratio = ratio;
    o_.resident_blocks = k;
    Make();
    EXPECT_EQ(ws_->fetch_cap(), cap) << ratio << " x " << k;
  }
}

TEST_F(WorkingSetStepTest, VictimsAreTheLeastRecentlySelected) {
  Make();
  const RequestSlot slot = Admit();
  ASSERT_TRUE(Step(slot, {8}).ok());  // 6, 7, 9 were never selected
  ASSERT_TRUE(Step(slot, {6}).ok());  // oldest first: 7, 9, 8, 6
  ASSERT_TRUE(Step(slot, {0}).ok());  // takes 7's page
  EXPECT_THAT(Map(slot), ElementsAre(6, 0, 8, 9));
  ASSERT_TRUE(Step(slot, {1, 2}).ok());  // take 9's, then 8's
  EXPECT_THAT(Map(slot), ElementsAre(6, 0, 2, 1));
  ASSERT_TRUE(Step(slot, {9, -1, 9, 6}).ok());  // 6 stays though its stamp is the oldest
  EXPECT_THAT(Map(slot), ElementsAre(6, 9, 2, 1));
}

TEST_F(WorkingSetStepTest, CompletedBlockIsPromotedThoughTheCapIsZero) {
  o_.fetch_ratio = 0.0;
  Make();
  const RequestSlot slot = Admit(19);
  ASSERT_THAT(Map(slot), ElementsAre(5, 6, 7, 8));
  ASSERT_EQ(ws_->View(LayerIndex(0), slot)->local_tokens, 1u);
  ASSERT_TRUE(Append(slot).ok());
  ASSERT_TRUE(Submit({slot}, {5, 6, 7, 0}).ok());
  // Attention of this step still reads it as the local block.
  EXPECT_EQ(ws_->View(LayerIndex(0), slot)->local_tokens, 2u);
  EXPECT_THAT(Map(slot), ElementsAre(5, 6, 7, 8));
  ASSERT_TRUE(Done({slot}).ok());
  ASSERT_TRUE(Wait({slot}).ok());
  EXPECT_THAT(Map(slot), ElementsAre(5, 6, 7, 9));
  EXPECT_EQ(ws_->View(LayerIndex(0), slot)->local_tokens, 0u);
  EXPECT_EQ(ws_->View(LayerIndex(0), slot)->local_block, BlockIndex(10));
  EXPECT_EQ(ws_->Stats().promoted, 1u);
  EXPECT_EQ(ws_->Stats().admitted, 0u);
  EXPECT_EQ(ws_->Stats().bytes_moved, 0u);
  EXPECT_TRUE(sources_[0]->written().contains({9, 0}));
  EXPECT_EQ(sources_[0]->wrong(), "");
}

TEST_F(WorkingSetStepTest, DecodedBlockComesBackFromTheSourceAfterEviction) {
  Make();
  const RequestSlot slot = Admit(19);
  ASSERT_TRUE(Append(slot).ok());
  ASSERT_TRUE(Step(slot, {0, 1, 2}).ok());
  EXPECT_THAT(Map(slot), ElementsAre(9, 0, 1, 2));
  ASSERT_TRUE(Step(slot, {3, 4, 5, 6}).ok());
  ASSERT_TRUE(Step(slot, {9}).ok());
  EXPECT_THAT(Map(slot), ElementsAre(9, 4, 5, 6));
}

TEST_F(WorkingSetStepTest, WithoutSubmitResidentsStayAndAFullBlockIsStillPromoted) {
  Make();
  const RequestSlot slot = Admit();
  for (int token = 0; token < 3; ++token) {
    ASSERT_TRUE(Wait({slot}).ok());
    ASSERT_TRUE(Append(slot).ok());
    EXPECT_EQ(Map(slot)[0], token < 2 ? 6 : 10);
    ASSERT_TRUE(Done({slot}).ok());
  }
  EXPECT_EQ(ws_->Stats().promoted, 1u);
  EXPECT_EQ(ws_->Stats().steps, 0u);
  EXPECT_EQ(ws_->Stats().predicted, 0u);
}

TEST_F(WorkingSetStepTest, ABlockOverMaxBlocksIsRefused) {
  o_.max_blocks = 10;
  Make();
  const RequestSlot slot = Admit(19);
  ASSERT_TRUE(Append(slot).ok());
  ASSERT_TRUE(Done({slot}).ok());
  ASSERT_TRUE(Wait({slot}).ok());
  const absl::Status status = Append(slot);
  EXPECT_EQ(ErrorCodeOf(status), ErrorCode::kCapacity);
  EXPECT_THAT(std::string(status.message()), HasSubstr("max_blocks (10)"));
}

TEST_F(WorkingSetStepTest, MoreResidentsThanBlocksLeavesPagesEmpty) {
  o_.resident_blocks = 8;
  o_.mode = SelectionMode::kExact;
  Make();
  const RequestSlot slot = Admit(6);
  EXPECT_THAT(Map(slot), ElementsAre(0, 1, 2, -1, -1, -1, -1, -1));
  ASSERT_TRUE(Resolve(slot).ok());
  ASSERT_TRUE(Step(slot, {0, 2, -1, 1, 0, -1}).ok());
  EXPECT_THAT(Map(slot), ElementsAre(0, 1, 2, -1, -1, -1, -1, -1));
  EXPECT_EQ(ws_->Stats().demanded, 0u);
  const RequestSlot empty = Admit(0);
  ASSERT_TRUE(Resolve(empty).ok());
  EXPECT_EQ(Map(empty)[0], -1);
}

TEST_F(WorkingSetStepTest, BytesUsedCountsOnlyWhatAttentionRead) {
  o_.mode = SelectionMode::kExact;
  Make();
  const RequestSlot slot = Admit();
  const uint64_t entry = o_.geometry.entry_bytes();
  const std::vector<float> zero(8, 0.0f);  // all scores equal: blocks 0 1 2 3
  ASSERT_TRUE(Step(slot, {4, 5}).ok());    // two warmed,
  ASSERT_TRUE(ws_->Resolve(LayerIndex(0), {&slot, 1}, zero.data()).ok());  // evicted unread
  EXPECT_EQ(ws_->Stats().bytes_moved, 6 * entry);
  EXPECT_EQ(ws_->Stats().bytes_used, 0u);
  ASSERT_TRUE(Done({slot}).ok());
  ASSERT_TRUE(Done({slot}).ok());
  EXPECT_EQ(ws_->Stats().bytes_used, 4 * entry);
}

TEST_F(WorkingSetStepTest, AgreementComparesWithThePredictionOfThisStepOnce) {
  Make();
  const RequestSlot slot = Admit();
  const std::vector<float> zero(8, 0.0f);  // truth: 0 1 2 3
  const auto sample = [&] {
    return ws_->SampleAgreement(LayerIndex(0), {&slot, 1}, zero.data()).ok();
  };
  ASSERT_TRUE(sample());  // nothing was predicted for the first step
  EXPECT_EQ(ws_->Stats().agreement_samples, 0u);
  ASSERT_TRUE(Step(slot, {0, 3, 7, 8}).ok());
  ASSERT_TRUE(sample());
  ASSERT_TRUE(sample());
  EXPECT_EQ(ws_->Stats().agreement_samples, 1u);
  EXPECT_EQ(ws_->Stats().agreement_sum, 0.5);
  EXPECT_THAT(Map(slot), ElementsAre(0, 7, 8, 3)) << "sampling changed something";
}

TEST_F(WorkingSetStepTest, FirstTopKDecidesTheResidents) {
  Make();
  auto source = std::make_shared<FakeSource>(o_.geometry, 21, 7);
  source->first_k = 6;
  source->first = {4, -1, 4, 10, 2, 0,  // 10 is the partly filled block: local
                   9, 8,  7, 6,  5, 4};
  const RequestSlot slot = Admit(source);
  EXPECT_THAT(Map(slot, 0), ElementsAre(0, 2, 4, -1));
  EXPECT_THAT(Map(slot, 1), ElementsAre(6, 7, 8, 9));
  EXPECT_EQ(ws_->View(LayerIndex(0), slot)->local_tokens, 1u);
}

TEST_F(WorkingSetStepTest, AdmissionPullsWholeLayerBlocksOnlyWhereTheyAreKept) {
  o_.geometry.kv_heads = o_.geometry.total_kv_heads = 2;
  o_.geometry.layers = 1;
  o_.resident_blocks = 2;
  Make();
  for (bool keeps : {false, true}) {
    auto source = std::make_shared<FakeSource>(o_.geometry, 20, 7);
    source->keeps_fetched = keeps;
    source->first_k = 2;
    source->first = {1, 2, 2, 3};
    ASSERT_TRUE(ws_->Admit(source).ok());
    EXPECT_EQ(source->entries(), keeps ? 6 : 4);
    EXPECT_EQ(
        ws_->RequestStats(RequestSlot(keeps)).admission_bytes,
        source->entries() * o_.geometry.entry_bytes() + 10 * o_.geometry.layer_summaries_bytes());
  }
}

TEST_F(WorkingSetStepTest, MissesOfOneSourceAreOneFetch) {
  Make();
  const RequestSlot a = Admit();
  const RequestSlot b = Admit(sources_[0]);
  const RequestSlot c = Admit();
  const int before0 = sources_[0]->fetches(), before1 = sources_[1]->fetches();
  ASSERT_TRUE(Submit({a, b, c}, {0, 1, 2}).ok());
  ASSERT_TRUE(Done({a, b, c}).ok());
  ASSERT_TRUE(Wait({a, b, c}).ok());
  EXPECT_EQ(sources_[0]->fetches() - before0, 1);
  EXPECT_EQ(sources_[1]->fetches() - before1, 1);
  for (RequestSlot slot : {a, b, c}) EXPECT_THAT(Map(slot), ElementsAre(0, 1, 2, 9));
}

TEST_F(WorkingSetStepTest, AdmitErrorsLeaveTheSlotFree) {
  o_.max_requests = 1;
  Make();
  EXPECT_EQ(ErrorCodeOf(ws_->Admit(nullptr).status()), ErrorCode::kInvalidArgument);

  Geometry other = o_.geometry;
  other.head_dim = 8;
  const auto mismatch = ws_->Admit(std::make_shared<FakeSource>(other, 20, 1)).status();
  EXPECT_EQ(ErrorCodeOf(mismatch), ErrorCode::kGeometryMismatch);
  EXPECT_THAT(std::string(mismatch.message()), HasSubstr("head_dim"));

  EXPECT_EQ(ErrorCodeOf(ws_->Admit(std::make_shared<FakeSource>(o_.geometry, 65, 1)).status()),
            ErrorCode::kCapacity);

  auto source = std::make_shared<FakeSource>(o_.geometry, 20, 1);
  source->first_k = 1;
  source->first = {3, 10};
  const auto range = ws_->Admit(source).status();
  EXPECT_EQ(ErrorCodeOf(range), ErrorCode::kOutOfRange);
  EXPECT_THAT(std::string(range.message()), HasSubstr("layer 1, head 0, item 0: block 10"));

  source->first_k = 0;
  source->FailFetches(MakeError(ErrorCode::kStale, "gone"));
  EXPECT_EQ(ErrorCodeOf(ws_->Admit(source).status()), ErrorCode::kStale);
  source->FailFetches(absl::OkStatus());
  EXPECT_EQ(Map(Admit(source)).size(), 4u);

  const auto full = ws_->Admit(source).status();
  EXPECT_EQ(ErrorCodeOf(full), ErrorCode::kCapacity);
  EXPECT_THAT(std::string(full.message()), HasSubstr("all 1 request slots"));
}

TEST_F(WorkingSetStepTest, CallsOutOfOrderAreRefusedAndChangeNothing) {
  o_.mode = SelectionMode::kExact;
  Make();
  const RequestSlot slot = Admit();
  ASSERT_TRUE(Submit({slot}, {0}).ok());
  for (const absl::Status& status :
       {Append(slot), Submit({slot}, {1}), Resolve(slot), Wait({slot})}) {
    EXPECT_EQ(ErrorCodeOf(status), ErrorCode::kWrongState) << status;
  }
  EXPECT_THAT(Map(slot), ElementsAre(6, 7, 8, 9));
  ASSERT_TRUE(Done({slot}).ok());
  EXPECT_EQ(ErrorCodeOf(ws_->View(LayerIndex(0), slot).status()), ErrorCode::kWrongState);
  ASSERT_TRUE(Wait({slot}).ok());
  ASSERT_TRUE(Append(slot).ok());
  ASSERT_TRUE(Append(slot).ok());  // two tokens in one step: allowed
  EXPECT_EQ(ErrorCodeOf(Append(slot)), ErrorCode::kWrongState) << "the local block is full";
  const std::vector<float> q(8);
  EXPECT_EQ(ErrorCodeOf(ws_->SampleAgreement(LayerIndex(0), {&slot, 1}, q.data())),
            ErrorCode::kInvalidArgument);
}

TEST_F(WorkingSetStepTest, RowsThatDoNotExistAreNamed) {
  Make();
  const RequestSlot slot = Admit();
  const absl::Status layer = Submit({slot}, {0}, 2);
  EXPECT_EQ(ErrorCodeOf(layer), ErrorCode::kOutOfRange);
  EXPECT_THAT(std::string(layer.message()), HasSubstr("layer 2"));
  const absl::Status free = Wait({slot, RequestSlot(1)});
  EXPECT_EQ(ErrorCodeOf(free), ErrorCode::kInvalidArgument);
  EXPECT_THAT(std::string(free.message()), HasSubstr("row 1: slot 1"));
  EXPECT_EQ(ErrorCodeOf(Wait({RequestSlot(3)})), ErrorCode::kInvalidArgument);
  EXPECT_EQ(ErrorCodeOf(Submit({slot, slot}, {0})), ErrorCode::kInvalidArgument);
  EXPECT_EQ(ErrorCodeOf(Resolve(slot)), ErrorCode::kInvalidArgument) << "capped mode";
  EXPECT_EQ(ErrorCodeOf(ws_->Submit(LayerIndex(0), {&slot, 1}, nullptr)),
            ErrorCode::kInvalidArgument);
  for (int32_t block : {11, -2, std::numeric_limits<int32_t>::max()}) {
    const absl::Status range = Submit({slot}, {1, block});
    EXPECT_EQ(ErrorCodeOf(range), ErrorCode::kOutOfRange);
    EXPECT_THAT(std::string(range.message()), HasSubstr("row 0, head 0, item 1"));
  }
  ASSERT_TRUE(Append(slot).ok());
  EXPECT_TRUE(Step(slot, {10, 0}).ok()) << "the local block is resident anyway";
  EXPECT_THAT(Map(slot), ElementsAre(0, 7, 8, 9));
}

TEST_F(WorkingSetStepTest, OptionsAreChecked) {
  const auto refused = [this](auto change, const char* field) {
    WorkingSetOptions options = o_;
    change(&options);
    const absl::Status status = WorkingSet::Create(options).status();
    EXPECT_EQ(ErrorCodeOf(status), ErrorCode::kInvalidArgument) << field;
    EXPECT_THAT(std::string(status.message()), HasSubstr(field));
  };
  refused([](auto* o) { o->geometry.layers = 0; }, "layers");
  refused([](auto* o) { o->query_heads = 0; }, "query_heads");
  refused(
      [](auto* o) { o->geometry.kv_heads = o->geometry.total_kv_heads = 2, o->query_heads = 3; },
      "query_heads");
  refused([](auto* o) { o->resident_blocks = 0; }, "resident_blocks");
  refused([](auto* o) { o->ranked_blocks = o->resident_blocks + 1; }, "ranked_blocks");
  refused([](auto* o) { o->fetch_ratio = -0.1; }, "fetch_ratio");
  refused([](auto* o) { o->fetch_ratio = 1.5; }, "fetch_ratio");
  refused([](auto* o) { o->bound_weight = -0.1; }, "bound_weight");
  refused([](auto* o) { o->bound_weight = 1.5; }, "bound_weight");
  refused([](auto* o) { o->bound_weight = std::numeric_limits<double>::quiet_NaN(); },
          "bound_weight");
  refused([](auto* o) { o->fetch_ratio = std::numeric_limits<double>::quiet_NaN(); },
          "fetch_ratio");
  refused([](auto* o) { o->max_requests = 0; }, "max_requests");
  refused([](auto* o) { o->max_blocks = 0; }, "max_blocks");
  refused([](auto* o) { o->late_deadline = std::chrono::nanoseconds(0); }, "late_deadline");

  WorkingSetOptions huge = o_;
  huge.max_requests = 65536;
  huge.max_blocks = 1u << 30;
  const absl::Status status = WorkingSet::Create(huge).status();
  EXPECT_EQ(ErrorCodeOf(status), ErrorCode::kCapacity);
  EXPECT_THAT(std::string(status.message()), HasSubstr("bytes of summaries"));
}

}  // namespace
}  // namespace oasiskv
