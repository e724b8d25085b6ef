// A call whose answer was lost and that is repeated gives what the first gave (rule 8 of
// server/lease/README.md).
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/server/core_fixture.h"

namespace oasiskv::server {
namespace {

constexpr CallToken kToken{77};

class CoreRepeat : public CoreFixture {
 protected:
  OpenSpec Named(const std::string& name, uint32_t blocks, CallToken token = kToken) {
    OpenSpec spec = Spec(name, blocks);
    spec.token = token;
    return spec;
  }
  // A writer over shm, with that connection.
  OpenSpec Mapped(uint64_t connection) {
    OpenSpec spec = Named("a", 4);
    spec.connection = ConnectionId(connection);
    core_->ConnectionOpened(spec.connection);
    return spec;
  }
  uint64_t Quarantined() { return core_->Capacity().quarantined_bytes; }
};

TEST_F(CoreRepeat, OpenGivesTheSameGrant) {
  const OpenResult first = MustOpen(Named("a", 4));
  Serve(Millis(6000));
  const OpenResult again = MustOpen(Named("a", 4));
  EXPECT_EQ(again.sequence, first.sequence);
  EXPECT_EQ(again.grant.id, first.grant.id);
  EXPECT_EQ(again.grant.frames, first.grant.frames);
  EXPECT_EQ(UsedBytes(), 4 * FrameBytes());
  Serve(Millis(6000));  // the lease of 10 s counts from the repeat
  EXPECT_TRUE(CommitAll(again, 4).ok());
  EXPECT_EQ(core_->Counters().opens, 1u);
  // Another call is another call.
  EXPECT_CODE(ErrorCode::kAlreadyExists, core_->Open(Named("a", 4, CallToken(78))).status());
  EXPECT_CODE(ErrorCode::kAlreadyExists, core_->Open(Named("a", 4, CallToken())).status());
}

// The caller lost its connection with the answer: the grant of the old one could never be fenced.
TEST_F(CoreRepeat, OpenFromAnotherConnectionLeavesNothingBehind) {
  const OpenResult first = MustOpen(Mapped(1));
  const OpenResult again = MustOpen(Mapped(2));
  EXPECT_NE(again.grant.id, first.grant.id);
  EXPECT_EQ(UsedBytes(), 4 * FrameBytes());
  EXPECT_EQ(Quarantined(), 0u);
  EXPECT_FALSE(CommitAll(first, 4).ok());
  EXPECT_TRUE(CommitAll(again, 4).ok());
}

TEST_F(CoreRepeat, AnAbandonedOpenLeavesNothingBehind) {
  MustOpen(Mapped(1));
  EXPECT_EQ(core_->AbandonOpen(CallToken(5)), 0u);
  EXPECT_EQ(core_->AbandonOpen(kToken), 1u);
  EXPECT_EQ(core_->AbandonOpen(kToken), 0u);
  EXPECT_EQ(UsedBytes(), 0u);
  // The lease may have ended first.
  MustOpen(Mapped(1));
  Serve(Millis(11'000));
  EXPECT_EQ(Quarantined(), 4 * FrameBytes());
  core_->AbandonOpen(kToken);
  EXPECT_EQ(UsedBytes(), 0u);
}

TEST_F(CoreRepeat, ExtendGivesTheSameBlocks) {
  const OpenResult opened = MustOpen("a", 2);
  const GrantKey key = Key(opened.grant);
  const ExtendResult first = *core_->Extend(key, 2, 3);
  const ExtendResult again = *core_->Extend(key, 2, 3);
  EXPECT_EQ(again.first_block, 2u);
  EXPECT_EQ(again.frames, first.frames);
  EXPECT_EQ(UsedBytes(), 5 * FrameBytes());
  // The caller never learned of the first, and asks for more now.
  const ExtendResult more = *core_->Extend(key, 2, 4);
  EXPECT_EQ(std::vector(more.frames.begin(), more.frames.begin() + 3), first.frames);
  EXPECT_EQ(UsedBytes(), 6 * FrameBytes());
  EXPECT_CODE(ErrorCode::kWrongState, core_->Extend(key, 7, 1).status());
}

TEST_F(CoreRepeat, AnEqualSealIsOk) {
  const OpenResult opened = MustOpen("a", 2);
  ASSERT_TRUE(CommitAll(opened, 2).ok());
  const GrantKey key = Key(opened.grant);
  ASSERT_TRUE(core_->Seal(key, 20, {}, "blob").ok());
  EXPECT_TRUE(core_->Seal(key, 20, {}, "blob").ok());
  EXPECT_CODE(ErrorCode::kWrongState, core_->Seal(key, 21, {}, "blob"));
  EXPECT_CODE(ErrorCode::kWrongState, core_->Seal(key, 20, {}, "other"));
  EXPECT_EQ(core_->Counters().seals, 1u);
  ASSERT_TRUE(ReleaseSequence("a").ok());
  EXPECT_TRUE(core_->Seal(key, 20, {}, "blob").ok()) << "it did happen";
}

TEST_F(CoreRepeat, AttachGivesTheSameGrant) {
  MustSeal("a", 2);
  AttachSpec spec = ReadSpec("a");
  spec.token = kToken;
  const AttachResult first = *core_->Attach(spec);
  const AttachResult again = *core_->Attach(spec);
  EXPECT_EQ(again.grant.id, first.grant.id);
  EXPECT_EQ(core_->Capacity().grants_reader, 1u);
  // Two calls were told of it, so one that was not delivered does not end it.
  core_->Undeliver(Key(first.grant));
  EXPECT_EQ(core_->Capacity().grants_reader, 1u);
  core_->Undeliver(Key(first.grant));
  EXPECT_EQ(core_->Capacity().grants_reader, 0u);
}

TEST_F(CoreRepeat, AnUndeliveredOpenLeavesNothingBehind) {
  core_->Undeliver(Key(MustOpen(Mapped(1)).grant));
  EXPECT_EQ(UsedBytes(), 0u);
}

TEST_F(CoreRepeat, ReleaseAndAbortMeanTheSequenceOfThatId) {
  const SequenceId first = MustSeal("a", 1).sequence;
  ASSERT_TRUE(core_->Abort({"a", first}, Me()).ok());
  MustSeal("a", 1);
  EXPECT_EQ(*core_->Abort({"a", first}, Me()), 0u);
  const SequenceRef old{"a", first};
  EXPECT_EQ(core_->Release({}, std::span(&old, 1), Me())->sequences, 0u);
  EXPECT_EQ(core_->Capacity().sequences_sealed, 1u);
}

// Another's grant cannot be guessed from one's own.
TEST_F(CoreRepeat, EpochsDoNotCountUp) {
  const uint64_t a = MustOpen("a", 0).grant.epoch.value();
  const uint64_t b = MustOpen("b", 0).grant.epoch.value();
  EXPECT_GT(a > b ? a - b : b - a, uint64_t{1} << 20);
}

}  // namespace
}  // namespace oasiskv::server
