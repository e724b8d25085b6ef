// Sealed sequences without a grant: when they are released, when not, and what is freed.
#include "tests/unit/server/core_fixture.h"

namespace oasiskv::server {
namespace {

using std::chrono::seconds;

constexpr Duration kTtl = seconds(60);

class Unattended : public CoreFixture {
 protected:
  void SetUp() override { StartWith(kTtl); }
  void StartWith(Duration ttl, uint32_t sequences = 1024) {
    CoreOptions o = SmallOptions();
    o.unattended_ttl = ttl;
    o.max_sequences = sequences;
    Start(o);
  }
  uint64_t Gone() { return core_->Counters().sequences_unattended; }
  AttachResult MustAttachFor(const std::string& name, Duration lease) {
    AttachSpec spec = ReadSpec(name);
    spec.lease = lease;
    absl::StatusOr<AttachResult> attached = core_->Attach(spec);
    EXPECT_TRUE(attached.ok()) << attached.status();
    return attached.ok() ? *attached : AttachResult();
  }
};

TEST_F(Unattended, GoesAfterItsTimeAndEverythingComesBack) {
  const CapacityInfo before = core_->Capacity();
  MustSeal("a", 3);
  Serve(kTtl - Millis(100));
  EXPECT_EQ(Gone(), 0u);
  EXPECT_EQ(UsedBytes(), 3 * FrameBytes());
  Serve(Millis(100));
  EXPECT_EQ(Gone(), 1u);
  EXPECT_EQ(UsedBytes(), 0u);
  const CapacityInfo after = core_->Capacity();
  EXPECT_EQ(after.free_bytes, before.free_bytes);
  EXPECT_EQ(after.slabs_free, before.slabs_free);
  EXPECT_EQ(after.sequences_sealed, 0u);
  EXPECT_EQ(after.sequences_released, 0u);
  EXPECT_CODE(ErrorCode::kNotFound, core_->Attach(ReadSpec("a")).status());
  EXPECT_TRUE(ReleaseSequence("a").ok());  // it is gone, which is not an error
  MustSeal("a", 1);                        // the name is free, and its clock starts again
  Serve(kTtl - Millis(100));
  MustAttach("a");
  // A count of its own: nobody released or lost anything.
  EXPECT_EQ(core_->Counters().sequences_released, 0u);
  EXPECT_EQ(core_->Counters().sequences_expired, 0u);
}

TEST_F(Unattended, AReaderKeepsItAndItsEndStartsTheClock) {
  MustSeal("a", 2);
  Serve(seconds(59));
  const AttachResult first = MustAttachFor("a", seconds(600));
  const AttachResult second = MustAttachFor("a", seconds(600));
  Serve(seconds(200));
  ASSERT_TRUE(Release(first.grant).ok());
  Serve(seconds(200));
  EXPECT_TRUE(Read(second.grant, {0, 0, 16}).ok());
  EXPECT_EQ(Gone(), 0u);
  ASSERT_TRUE(Release(second.grant).ok());
  Serve(kTtl - Millis(100));
  EXPECT_EQ(Gone(), 0u);
  Serve(Millis(100));
  EXPECT_EQ(Gone(), 1u);
  EXPECT_EQ(UsedBytes(), 0u);
}

TEST_F(Unattended, AnExpiredReaderStartsTheClockToo) {
  MustSeal("a", 2);
  const AttachResult dead = MustAttachFor("a", seconds(10));
  Serve(seconds(10));
  EXPECT_CODE(ErrorCode::kLeaseExpired, Read(dead.grant, {0, 0, 16}));
  Serve(kTtl - Millis(100));
  EXPECT_EQ(Gone(), 0u);
  Serve(Millis(100));
  EXPECT_EQ(Gone(), 1u);
  EXPECT_EQ(UsedBytes(), 0u);
}

TEST_F(Unattended, AReaderThatCameBeforeTheSealCounts) {
  const OpenResult opened = MustOpen("a", 2);
  const AttachResult early = MustAttachFor("a", seconds(600));
  ASSERT_TRUE(CommitAll(opened, 2).ok());
  ASSERT_TRUE(Seal(opened, 2).ok());
  Serve(kTtl + seconds(5));
  EXPECT_TRUE(Read(early.grant, {0, 0, 16}).ok());
  ASSERT_TRUE(Release(early.grant).ok());
  Serve(kTtl);
  EXPECT_EQ(Gone(), 1u);
}

TEST_F(Unattended, AnOpenSequenceLivesByItsWriterAlone) {
  OpenSpec spec = Spec("a", 2);
  spec.lease = seconds(600);
  const OpenResult opened = MustOpen(spec);
  ASSERT_TRUE(CommitAll(opened, 2).ok());
  ASSERT_TRUE(Release(MustAttach("a").grant).ok());
  Serve(kTtl + seconds(5));
  ASSERT_TRUE(Seal(opened, 2).ok());  // the clock starts here, not at open
  Serve(kTtl - Millis(100));
  EXPECT_EQ(Gone(), 0u);
  Serve(Millis(100));
  EXPECT_EQ(Gone(), 1u);
}

TEST_F(Unattended, WhatEndedOtherwiseIsNotCounted) {
  MustSeal("released", 1);
  MustSeal("aborted", 1);
  MustSeal("held", 1);
  const AttachResult reader = MustAttachFor("held", seconds(600));
  ASSERT_TRUE(ReleaseSequence("held").ok());
  ASSERT_TRUE(ReleaseSequence("released").ok());
  ASSERT_TRUE(core_->Abort({"aborted"}, Me()).ok());
  Serve(kTtl + seconds(5));
  EXPECT_TRUE(Read(reader.grant, {0, 0, 16}).ok());
  ASSERT_TRUE(Release(reader.grant).ok());
  Serve(kTtl + seconds(5));
  EXPECT_EQ(Gone(), 0u);
  EXPECT_EQ(core_->Counters().sequences_released, 2u);
  EXPECT_EQ(core_->Counters().sequences_aborted, 1u);
  EXPECT_EQ(UsedBytes(), 0u);
}

TEST_F(Unattended, ADaemonThatStoodStillReleasesNobody) {
  MustSeal("a", 1);
  Serve(seconds(30));
  clock_.Advance(seconds(3600));
  core_->Tick(clock_.Now());
  EXPECT_EQ(Gone(), 0u);
  // The hour counts as one tick of half a second.
  Serve(seconds(29) + Millis(400));
  EXPECT_EQ(Gone(), 0u);
  Serve(Millis(100));
  EXPECT_EQ(Gone(), 1u);
}

TEST_F(Unattended, TheClockIsNotShortWhenItStartsBetweenTicks) {
  StartWith(Millis(200));
  clock_.Advance(Millis(150));  // no tick yet
  MustSeal("a", 1);
  clock_.Advance(Millis(199));
  core_->Tick(clock_.Now());
  EXPECT_EQ(Gone(), 0u);
  clock_.Advance(Millis(1));
  core_->Tick(clock_.Now());
  EXPECT_EQ(Gone(), 1u);
}

TEST_F(Unattended, ZeroKeepsItForEver) {
  StartWith(Duration(0));
  MustSeal("a", 1);
  ASSERT_TRUE(Release(MustAttach("a").grant).ok());
  Serve(seconds(3600));
  EXPECT_EQ(Gone(), 0u);
  MustAttach("a");
}

// Seals with a mapped writer: its quarantined frames wait for the fence, as after Release.
TEST_F(Unattended, AQuarantinedWritersFramesStillWaitForItsFence) {
  OpenSpec spec = Spec("a", 2);
  spec.connection = ConnectionId(7);
  core_->ConnectionOpened(ConnectionId(7));
  const OpenResult opened = MustOpen(spec);
  ASSERT_TRUE(CommitAll(opened, 2).ok());
  ASSERT_TRUE(Seal(opened, 2).ok());
  Serve(kTtl);
  EXPECT_EQ(Gone(), 1u);
  EXPECT_EQ(core_->Capacity().quarantined_bytes, 2 * FrameBytes());
  core_->WriterFenced(ConnectionId(7), opened.grant.id);
  EXPECT_EQ(UsedBytes(), 0u);
}

// More than a portion in one tick; those whose clock started later stay.
TEST_F(Unattended, ThousandsGoInOneTickAndTheYoungerStay) {
  CoreOptions o = SmallOptions();
  o.pool_bytes = uint64_t{64} << 20;
  o.unattended_ttl = kTtl;
  o.max_sequences = 65536;
  Start(o);
  constexpr uint32_t kOld = 5000, kYoung = 1500;
  for (uint32_t i = 0; i < kOld; ++i) MustSeal("old" + std::to_string(i), 1);
  Serve(seconds(30));
  for (uint32_t i = 0; i < kYoung; ++i) MustSeal("young" + std::to_string(i), 1);
  Serve(seconds(30) - Millis(100));
  EXPECT_EQ(Gone(), 0u);
  clock_.Advance(Millis(100));
  core_->Tick(clock_.Now());
  EXPECT_EQ(Gone(), kOld);
  EXPECT_EQ(core_->Capacity().sequences_sealed, kYoung);
  EXPECT_EQ(UsedBytes(), kYoung * FrameBytes());
  Serve(seconds(30));
  EXPECT_EQ(UsedBytes(), 0u);
}

}  // namespace
}  // namespace oasiskv::server
