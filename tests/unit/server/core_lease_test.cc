// Grants: words and epochs, and leases counted in served time.
#include <set>

#include "server/lease/grant_words.h"
#include "server/lease/served_clock.h"
#include "tests/unit/server/core_lease_fixture.h"

namespace oasiskv::server {
namespace {

using fabric::RevokedWord;
using fabric::RevokeReason;
using std::chrono::seconds;

using Lease = LeaseFixture;

TEST_F(Lease, EveryEndOfAGrantShowsInItsWordWithItsReason) {
  MustSeal("a", 1);
  const AttachResult released = MustAttach("a"), expired = MustAttach("a");
  EXPECT_EQ(MappedWord(released.grant), released.grant.epoch.value());
  ASSERT_TRUE(Release(released.grant).ok());
  EXPECT_EQ(MappedWord(released.grant), RevokedWord(RevokeReason::kReleased, released.grant.epoch));
  Serve(seconds(11));
  EXPECT_EQ(MappedWord(expired.grant), RevokedWord(RevokeReason::kExpired, expired.grant.epoch));
  EXPECT_CODE(ErrorCode::kLeaseExpired,
              fabric::CheckGrantWord(MappedWord(expired.grant), expired.grant.epoch));
  const AttachResult aborted = MustAttach("a");
  ASSERT_TRUE(core_->Abort({"a"}, Me()).ok());
  EXPECT_EQ(MappedWord(aborted.grant), RevokedWord(RevokeReason::kAborted, aborted.grant.epoch));
  const OpenResult writer = MustOpen("b", 1);
  ASSERT_TRUE(CommitAll(writer, 1).ok());
  ASSERT_TRUE(Seal(writer, 1).ok());
  EXPECT_EQ(MappedWord(writer.grant), RevokedWord(RevokeReason::kReleased, writer.grant.epoch));
  EXPECT_EQ(Word(writer.grant), MappedWord(writer.grant));
  EXPECT_EQ(core_->GrantWord(GrantId(77)), 0u);
}

TEST_F(Lease, EpochsAndIdsAreNeverReusedAndDifferBetweenLives) {
  CoreOptions o = SmallOptions();
  o.max_grants = 2;
  Start(o);
  MustSeal("a", 1);
  std::set<uint64_t> epochs, ids;
  for (int i = 0; i < 100; ++i) {
    const AttachResult attached = MustAttach("a");
    EXPECT_TRUE(epochs.insert(attached.grant.epoch.value()).second);
    EXPECT_TRUE(ids.insert(attached.grant.id.value()).second);
    EXPECT_LT(attached.grant.epoch.value(), uint64_t{1} << GrantWords::kEpochBits);
    ASSERT_TRUE(Release(attached.grant).ok());
  }
  const AttachResult old = MustAttach("a");
  const uint64_t incarnation = core_->incarnation();
  Start(o);
  EXPECT_NE(core_->incarnation(), incarnation);
  MustSeal("a", 1);
  const AttachResult young = MustAttach("a");
  EXPECT_NE(young.grant.id.value() >> 32, old.grant.id.value() >> 32);
  EXPECT_CODE(ErrorCode::kStale, Read(old.grant, {0, 0, 16})) << "an earlier life's";
}

TEST_F(Lease, AReusedSlotMakesItsFormerHolderStale) {
  CoreOptions o = SmallOptions();
  o.max_grants = 1;
  Start(o);
  MustSeal("a", 1);
  const AttachResult first = MustAttach("a");
  EXPECT_CODE(ErrorCode::kCapacity, core_->Attach(ReadSpec("a")).status());
  ASSERT_TRUE(Release(first.grant).ok());
  const AttachResult second = MustAttach("a");
  EXPECT_EQ(first.grant.word_slot, second.grant.word_slot);
  EXPECT_CODE(ErrorCode::kStale,
              fabric::CheckGrantWord(MappedWord(first.grant), first.grant.epoch));
  EXPECT_TRUE(fabric::CheckGrantWord(MappedWord(second.grant), second.grant.epoch).ok());
}

TEST(GrantWordsTest, TheSlotFreeLongestIsTakenFirst) {
  absl::StatusOr<GrantWords> words = GrantWords::Create(3);
  ASSERT_TRUE(words.ok());
  const WordSlot a = *words->TakeSlot(), b = *words->TakeSlot(), c = *words->TakeSlot();
  EXPECT_EQ(words->TakeSlot(), std::nullopt);
  words->GiveSlot(b);
  words->GiveSlot(a);
  words->GiveSlot(c);
  EXPECT_EQ(words->TakeSlot(), b);
  EXPECT_EQ(words->TakeSlot(), a);
}

TEST(ServedClockTest, CreditsAtMostOneTickAndNeverGoesBack) {
  const MonotonicTime start{seconds(5)};
  ServedClock clock(start, Millis(500));
  clock.Tick(start + Millis(300));
  EXPECT_EQ(clock.served(), Millis(300));
  EXPECT_EQ(clock.At(start + Millis(700)), Millis(700));
  EXPECT_EQ(clock.At(start + seconds(60)), Millis(800));
  clock.Tick(start + seconds(60));
  EXPECT_EQ(clock.served(), Millis(800));
  clock.Tick(start + seconds(1));
  EXPECT_EQ(clock.served(), Millis(800));
  clock.Tick(start + seconds(60) + Millis(1));
  EXPECT_EQ(clock.served(), Millis(801));
}

// A daemon that was stopped for 15 s ends no lease for it, though leases are 10 s.
TEST_F(Lease, AStopOfFifteenSecondsExpiresNobody) {
  MustSeal("a", 1);
  const AttachResult reader = MustAttach("a");
  Serve(seconds(5));
  clock_.Advance(seconds(15));
  core_->Tick(clock_.Now());
  EXPECT_TRUE(Read(reader.grant, {0, 0, 16}).ok());
  EXPECT_EQ(core_->Counters().grants_expired, 0u);
  // What was served does count: 5 s + 0.5 s are gone.
  Serve(seconds(4));
  EXPECT_TRUE(Read(reader.grant, {0, 0, 16}).ok());
  Serve(Millis(600));
  EXPECT_CODE(ErrorCode::kLeaseExpired, Read(reader.grant, {0, 0, 16}));
  EXPECT_EQ(core_->Counters().expired_requests, 1u);
}

TEST_F(Lease, ALeaseGivenBetweenTicksIsNotShort) {
  MustSeal("a", 1);
  clock_.Advance(Millis(200));  // no tick yet
  AttachSpec spec = ReadSpec("a");
  spec.lease = Millis(200);
  const AttachResult reader = *core_->Attach(spec);
  clock_.Advance(Millis(199));
  core_->Tick(clock_.Now());
  EXPECT_TRUE(Read(reader.grant, {0, 0, 16}).ok());
  clock_.Advance(Millis(1));
  core_->Tick(clock_.Now());
  EXPECT_CODE(ErrorCode::kLeaseExpired, Read(reader.grant, {0, 0, 16}));
}

// A client that holds 100 grants is killed: after the lease time all of its memory is free again.
TEST_F(Lease, AKilledClientsHundredGrantsComeBackExactly) {
  MustSeal("base", 3);
  const uint64_t before = UsedBytes();
  for (int i = 0; i < 50; ++i) {
    MustOpen("w" + std::to_string(i), 4);
    MustAttach("base");
  }
  ASSERT_TRUE(ReleaseSequence("base").ok());
  Serve(seconds(9));
  EXPECT_EQ(core_->Counters().grants_expired, 0u);
  EXPECT_EQ(UsedBytes(), before + 50 * 4 * FrameBytes());
  Serve(seconds(2));
  EXPECT_EQ(core_->Counters().grants_expired, 100u);
  EXPECT_EQ(core_->Counters().sequences_expired, 50u);
  EXPECT_EQ(UsedBytes(), 0u);
  EXPECT_TRUE(core_->Grants(GrantId(), 1000).empty());
  EXPECT_EQ(core_->Capacity().slabs_free, core_->Capacity().slabs_total);
}

TEST_F(Lease, ExpiryOfMoreGrantsThanOnePortionEndsInOneTick) {
  CoreOptions o = SmallOptions();
  o.max_grants = 5000;
  Start(o);
  MustSeal("a", 2);
  for (int i = 0; i < 5000; ++i) MustAttach("a");
  Serve(seconds(9));
  clock_.Advance(Millis(500));
  core_->Tick(clock_.Now());
  EXPECT_EQ(core_->Counters().grants_expired, 0u);
  clock_.Advance(Millis(500));
  core_->Tick(clock_.Now());
  EXPECT_EQ(core_->Counters().grants_expired, 5000u);
  MustAttach("a");
}

TEST_F(Lease, RenewProlongsWhatIsThereAndNamesWhatIsNot) {
  MustSeal("a", 1);
  const AttachResult kept = MustAttach("a"), released = MustAttach("a");
  AttachSpec brief = ReadSpec("a");
  brief.lease = seconds(1);
  const AttachResult expired = *core_->Attach(brief);
  ASSERT_TRUE(Release(released.grant).ok());
  Serve(seconds(8));
  const std::vector<GrantKey> keys = {Key(kept.grant),
                                      Key(released.grant),
                                      Key(expired.grant),
                                      {kept.grant.id, Epoch(5)},
                                      {GrantId(), Epoch(1)},
                                      {GrantId(~uint64_t{0}), Epoch(1)},
                                      {GrantId(kept.grant.id.value() + 1000), Epoch(1)}};
  const absl::StatusOr<RenewResult> renewed = core_->Renew(keys, Duration(0));
  ASSERT_TRUE(renewed.ok());
  EXPECT_EQ(renewed->lease, seconds(10));
  std::vector<std::pair<uint64_t, ErrorCode>> lost;
  for (const LostGrant& l : renewed->lost) {
    lost.emplace_back(l.id.value(), static_cast<ErrorCode>(l.reason));
  }
  EXPECT_EQ(lost, (std::vector<std::pair<uint64_t, ErrorCode>>{
                      {released.grant.id.value(), ErrorCode::kStale},
                      {expired.grant.id.value(), ErrorCode::kLeaseExpired},
                      {kept.grant.id.value(), ErrorCode::kStale},
                      {0, ErrorCode::kNotFound},
                      {~uint64_t{0}, ErrorCode::kStale},
                      {kept.grant.id.value() + 1000, ErrorCode::kStale}}));
  Serve(seconds(8));
  EXPECT_TRUE(Read(kept.grant, {0, 0, 16}).ok()) << "16 s after it was given";
  EXPECT_CODE(ErrorCode::kInvalidArgument, core_->Renew(keys, std::chrono::hours(1)).status());
  Serve(seconds(3));
  EXPECT_CODE(ErrorCode::kLeaseExpired, Read(kept.grant, {0, 0, 16}));
}

TEST_F(Lease, TheWritersExpiryTakesTheSequenceAndItsReadersAlong) {
  const OpenResult opened = MustOpen("a", 2);
  ASSERT_TRUE(CommitAll(opened, 2).ok());
  Serve(seconds(8));
  const AttachResult reader = MustAttach("a");
  Serve(seconds(3));
  EXPECT_CODE(ErrorCode::kLeaseExpired, core_->Seal(Key(opened.grant), 1, {}, ""));
  EXPECT_CODE(ErrorCode::kStale, Read(reader.grant, {0, 0, 16}));
  EXPECT_EQ(MappedWord(reader.grant), RevokedWord(RevokeReason::kAborted, reader.grant.epoch));
  const CoreCounters c = core_->Counters();
  EXPECT_EQ(c.grants_expired, 1u);
  EXPECT_EQ(c.grants_revoked, 1u);
  EXPECT_EQ(c.sequences_expired, 1u);
  EXPECT_EQ(c.stale_requests, 1u);
  EXPECT_EQ(c.expired_requests, 1u);
  EXPECT_EQ(UsedBytes(), 0u);
}

}  // namespace
}  // namespace oasiskv::server
