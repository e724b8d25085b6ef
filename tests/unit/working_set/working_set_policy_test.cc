// Late, failed and lost sources, and the hazard of overwriting what attention reads.
#include <memory>
#include <thread>
#include <vector>

#include "tests/unit/working_set/working_set_fixture.h"

namespace oasiskv {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kBeforeInstall[] = "ws.transfer.before_install";
constexpr char kBeforeRank[] = "ws.predict.before_rank";

class WorkingSetPolicyTest : public WorkingSetFixture {
 protected:
  // Blocks that must not arrive are asked for with a deadline that passes soon.
  void ShortDeadline() { o_.late_deadline = std::chrono::milliseconds(30); }
  // A step whose read has begun, however slow the machine, before the deadline counts.
  absl::Status StepWithRead(RequestSlot slot, const std::vector<int32_t>& list) {
    const int before = slots_[slot.value()]->fetches();
    if (auto s = Submit({slot}, list); !s.ok()) return s;
    while (slots_[slot.value()]->fetches() == before) std::this_thread::yield();
    if (auto s = Done({slot}); !s.ok()) return s;
    return Wait({slot});
  }
};

// A transfer for the next step must not write a page that attention of this step may still read.
TEST_F(WorkingSetPolicyTest, PagesStayUntouchedUntilAttentionIsDone) {
  Make();
  const RequestSlot slot = Admit();
  PausePoints::Arm(kBeforeInstall);
  ASSERT_TRUE(Submit({slot}, {0, 1, 2, 3}, 0).ok());
  ASSERT_TRUE(PausePoints::WaitReached(kBeforeInstall));  // the bytes are there
  EXPECT_THAT(Map(slot, 0), ElementsAre(6, 7, 8, 9));
  PausePoints::Release(kBeforeInstall);
  while (PausePoints::Waiting() > 0) std::this_thread::yield();  // or the next arming is lost
  // The transfer stage is past layer 0 once it stands before layer 1's pages.
  PausePoints::Arm(kBeforeInstall);
  ASSERT_TRUE(Submit({slot}, {0, 1, 2, 3}, 1).ok());
  ASSERT_TRUE(PausePoints::WaitReached(kBeforeInstall));
  EXPECT_THAT(Map(slot, 0), ElementsAre(6, 7, 8, 9));
  EXPECT_THAT(Map(slot, 1), ElementsAre(6, 7, 8, 9));
  PausePoints::Release(kBeforeInstall);
  for (uint32_t layer : {0u, 1u}) {
    ASSERT_TRUE(Done({slot}, layer).ok());
    ASSERT_TRUE(Wait({slot}, layer).ok());
    EXPECT_THAT(Map(slot, layer), ElementsAre(0, 1, 2, 3));
  }
}

TEST_F(WorkingSetPolicyTest, SkipGoesOnWithTheResidents) {
  ShortDeadline();
  o_.late = LatePolicy::kSkip;
  Make();
  const RequestSlot slot = Admit();
  sources_[0]->Close();
  ASSERT_TRUE(StepWithRead(slot, {0, 1, 8}).ok());
  EXPECT_THAT(Map(slot), ElementsAre(6, 7, 8, 9));
  const WorkingSetStats stats = ws_->Stats();
  EXPECT_EQ(stats.skipped, 2u);
  EXPECT_EQ(stats.late, 2u);
  EXPECT_EQ(stats.hit, 1u);
  EXPECT_EQ(stats.admitted, 0u);
  EXPECT_EQ(stats.degraded, 0u);
  sources_[0]->Open();
  while (true) {  // until a step is quick enough on this machine
    ASSERT_TRUE(Step(slot, {0, 1, 8}).ok());
    if (Map(slot) == std::vector<int32_t>{0, 1, 8, 9}) break;
    ASSERT_THAT(Map(slot), ElementsAre(6, 7, 8, 9));
  }
}

// The deadline is for the bytes. Once it skipped blocks that had arrived long before, because
// attention itself had taken longer than the deadline.
TEST_F(WorkingSetPolicyTest, BytesThatArrivedInTimeAreInstalledHoweverLongAttentionTook) {
  ShortDeadline();
  o_.late = LatePolicy::kSkip;
  Make();
  const RequestSlot slot = Admit();
  PausePoints::Arm(kBeforeInstall);
  ASSERT_TRUE(Submit({slot}, {0, 1}).ok());
  ASSERT_TRUE(PausePoints::WaitReached(kBeforeInstall));
  std::this_thread::sleep_for(2 * o_.late_deadline);  // attention
  ASSERT_TRUE(Done({slot}).ok());
  std::thread release([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // Wait is in there by now
    PausePoints::Release(kBeforeInstall);
  });
  EXPECT_TRUE(Wait({slot}).ok());
  release.join();
  EXPECT_THAT(Map(slot), ElementsAre(0, 1, 8, 9));
  EXPECT_EQ(ws_->Stats().skipped, 0u);
}

// A source that ignores deadlines: the read is cancelled, and bytes that come later are not written.
TEST_F(WorkingSetPolicyTest, SkipCancelsAReadThatOverstaysItsDeadline) {
  ShortDeadline();
  o_.late = LatePolicy::kSkip;
  Make();
  const RequestSlot slot = Admit();
  sources_[0]->ignore_deadline = true;
  sources_[0]->Close();
  ASSERT_TRUE(StepWithRead(slot, {0, 1}).ok());
  EXPECT_EQ(ws_->Stats().skipped, 2u);
  ASSERT_TRUE(ws_->Leave(slot).ok());  // waits until the stages are done with it
  EXPECT_EQ(sources_[0]->cancelled(), 1);
}

// The stages have not even ranked when the deadline passes; the full block must make room all the
// same, or the next token would have no place.
TEST_F(WorkingSetPolicyTest, SkipBeforeSelectionStillPromotes) {
  ShortDeadline();
  o_.late = LatePolicy::kSkip;
  Make();
  const RequestSlot slot = Admit(19);
  ASSERT_TRUE(Append(slot).ok());
  PausePoints::Arm(kBeforeRank);
  const std::vector<float> q(8, 1.0f);
  ASSERT_TRUE(ws_->Submit(LayerIndex(0), {&slot, 1}, q.data()).ok());
  ASSERT_TRUE(PausePoints::WaitReached(kBeforeRank));
  ASSERT_TRUE(Done({slot}).ok());
  ASSERT_TRUE(Wait({slot}).ok());
  EXPECT_THAT(Map(slot), ElementsAre(9, 6, 7, 8));
  EXPECT_TRUE(sources_[0]->written().contains({9, 0}));
  ASSERT_TRUE(Append(slot).ok());
  PausePoints::Release(kBeforeRank);
  ASSERT_TRUE(ws_->Leave(slot).ok());  // the given-up job came through the stages without a change
  EXPECT_EQ(ws_->Stats().promoted, 1u);
  EXPECT_EQ(ws_->Stats().predicted, 0u);
}

TEST_F(WorkingSetPolicyTest, WaitFailsAtTheDeadlineAndNamesTheRow) {
  ShortDeadline();
  Make();
  const RequestSlot slot = Admit();
  sources_[0]->Close();
  const absl::Status status = StepWithRead(slot, {0, 1, 8});
  EXPECT_EQ(ErrorCodeOf(status), ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("slot 0, layer 0: 2 of 2 entries"));
  EXPECT_THAT(Map(slot), ElementsAre(6, 7, 8, 9));
}

// A request whose source hangs must not make the others of its batch late.
TEST_F(WorkingSetPolicyTest, AHangingSourceHoldsUpItsOwnRequestOnly) {
  o_.late_deadline = std::chrono::minutes(10);
  Make();
  const RequestSlot stuck = Admit();
  const RequestSlot fine = Admit();
  sources_[0]->Close();
  ASSERT_TRUE(Submit({stuck, fine}, {0, 1}).ok());
  ASSERT_TRUE(Done({stuck, fine}).ok());
  ASSERT_TRUE(Wait({fine}).ok());
  EXPECT_THAT(Map(fine), ElementsAre(0, 1, 8, 9));
  EXPECT_EQ(ErrorCodeOf(ws_->View(LayerIndex(0), stuck).status()), ErrorCode::kWrongState);
  ASSERT_TRUE(ws_->Leave(stuck).ok());  // at once: the read is cancelled
  EXPECT_EQ(sources_[0]->cancelled(), 1);
}

TEST_F(WorkingSetPolicyTest, FailReportsTheSourcesErrorAndTouchesNoPage) {
  Make();
  const RequestSlot slot = Admit();
  const RequestSlot other = Admit();
  sources_[0]->FailFetches(MakeError(ErrorCode::kStale, "the grant was revoked"));
  ASSERT_TRUE(Submit({slot, other}, {0, 1}).ok());
  ASSERT_TRUE(Done({slot, other}).ok());
  const absl::Status status = Wait({slot, other});
  EXPECT_EQ(ErrorCodeOf(status), ErrorCode::kStale);
  EXPECT_THAT(std::string(status.message()), HasSubstr("slot 0, layer 0"));
  EXPECT_THAT(Map(slot), ElementsAre(6, 7, 8, 9));
  EXPECT_THAT(Map(other), ElementsAre(0, 1, 8, 9));
  EXPECT_EQ(ws_->Stats().degraded, 0u);
}

TEST_F(WorkingSetPolicyTest, DegradeServesResidentsAndAsksADeadSourceNothing) {
  o_.loss = LossPolicy::kDegrade;
  Make();
  const RequestSlot slot = Admit();
  sources_[0]->FailFetches(MakeError(ErrorCode::kPeerLost, "daemon gone"));
  ASSERT_TRUE(Step(slot, {0, 1}).ok());
  EXPECT_THAT(Map(slot), ElementsAre(6, 7, 8, 9));
  EXPECT_EQ(ws_->Stats().degraded, 1u);
  EXPECT_EQ(ws_->Stats().skipped, 2u);

  const int fetches = sources_[0]->fetches();
  sources_[0]->SetHealth(MakeError(ErrorCode::kPeerLost, "daemon gone"));
  ASSERT_TRUE(Step(slot, {0, 1}).ok());
  EXPECT_EQ(sources_[0]->fetches(), fetches);
  EXPECT_EQ(ws_->Stats().degraded, 2u);

  sources_[0]->SetHealth(absl::OkStatus());
  sources_[0]->FailFetches(absl::OkStatus());
  ASSERT_TRUE(Step(slot, {0, 1}).ok());
  EXPECT_THAT(Map(slot), ElementsAre(0, 1, 8, 9));
  EXPECT_EQ(ws_->Stats().degraded, 2u);
}

TEST_F(WorkingSetPolicyTest, ResolveFollowsThePoliciesToo) {
  o_.mode = SelectionMode::kExact;
  Make();
  RequestSlot slot = Admit();
  const std::vector<float> zero(8, 0.0f);  // truth: 0 1 2 3
  const auto resolve = [&] { return ws_->Resolve(LayerIndex(0), {&slot, 1}, zero.data()); };
  sources_[0]->FailFetches(MakeError(ErrorCode::kLeaseExpired, "too late"));
  const absl::Status status = resolve();
  EXPECT_EQ(ErrorCodeOf(status), ErrorCode::kLeaseExpired);
  EXPECT_THAT(std::string(status.message()), HasSubstr("slot 0, layer 0: 4 of 4"));
  EXPECT_THAT(Map(slot), ElementsAre(6, 7, 8, 9));
  sources_[0]->FailFetches(absl::OkStatus());
  ASSERT_TRUE(resolve().ok());
  EXPECT_THAT(Map(slot), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(ws_->Stats().demanded, 4u);

  o_.loss = LossPolicy::kDegrade;
  Make();
  slot = Admit();
  sources_[1]->FailFetches(MakeError(ErrorCode::kLeaseExpired, "too late"));
  ASSERT_TRUE(resolve().ok());
  EXPECT_THAT(Map(slot), ElementsAre(6, 7, 8, 9));
  EXPECT_EQ(ws_->Stats().degraded, 1u);

  o_.loss = LossPolicy::kFail;
  o_.late = LatePolicy::kSkip;
  ShortDeadline();
  Make();
  slot = Admit();
  sources_[2]->Close();
  ASSERT_TRUE(resolve().ok());
  EXPECT_THAT(Map(slot), ElementsAre(6, 7, 8, 9));
  EXPECT_EQ(ws_->Stats().skipped, 4u);
}

TEST_F(WorkingSetPolicyTest, AFailedWriteBackIsALoss) {
  for (LossPolicy loss : {LossPolicy::kFail, LossPolicy::kDegrade}) {
    o_.loss = loss;
    Make();
    const RequestSlot slot = Admit(19);
    sources_.back()->FailWriteBack(MakeError(ErrorCode::kCapacity, "host memory is full"));
    ASSERT_TRUE(Append(slot).ok());
    const absl::Status status = Step(slot, {6});
    if (loss == LossPolicy::kFail) {
      EXPECT_EQ(ErrorCodeOf(status), ErrorCode::kCapacity);
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("slot 0, layer 0: writing back block 9"));
    } else {
      EXPECT_TRUE(status.ok());
      EXPECT_EQ(ws_->Stats().degraded, 1u);
    }
    EXPECT_THAT(Map(slot), ElementsAre(9, 6, 7, 8));  // resident all the same
  }
}

TEST_F(WorkingSetPolicyTest, LeaveTakesARequestOutInMidStep) {
  o_.late_deadline = std::chrono::minutes(10);
  Make();
  const RequestSlot slot = Admit();
  const RequestSlot other = Admit();
  sources_[0]->Close();
  ASSERT_TRUE(Submit({slot, other}, {0, 1}).ok());  // no AttentionDone follows for `slot`
  ASSERT_TRUE(ws_->Leave(slot).ok());
  EXPECT_EQ(ErrorCodeOf(Wait({slot})), ErrorCode::kInvalidArgument);
  const RequestSlot next = Admit();
  EXPECT_EQ(next, slot);
  EXPECT_THAT(Map(next), ElementsAre(6, 7, 8, 9));
  ASSERT_TRUE(Done({other}).ok());
  ASSERT_TRUE(Wait({other}).ok());
  EXPECT_THAT(Map(other), ElementsAre(0, 1, 8, 9));
  EXPECT_THAT(Map(next), ElementsAre(6, 7, 8, 9));
}

TEST_F(WorkingSetPolicyTest, DestructionCancelsWhatIsInFlight) {
  o_.late_deadline = std::chrono::minutes(10);
  Make();
  const RequestSlot slot = Admit();
  sources_[0]->Close();
  for (uint32_t layer : {0u, 1u}) ASSERT_TRUE(Submit({slot}, {0, 1}, layer).ok());
  ASSERT_TRUE(Done({slot}, 1).ok());
  ws_.reset();
  EXPECT_EQ(sources_[0].use_count(), 2);  // the test's two: no read is left
}

}  // namespace
}  // namespace oasiskv
