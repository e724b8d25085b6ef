// Grants: words and epochs, leases counted in served time, what each data request is refused for,
// and quarantine.
#include <sys/mman.h>

#include <algorithm>
#include <set>

#include "common/mapped_memory.h"
#include "server/lease/grant_words.h"
#include "server/lease/range_check.h"
#include "server/lease/served_clock.h"
#include "tests/unit/core_fixture.h"

namespace oasiskv::server {
namespace {

using fabric::Access;
using fabric::RevokedWord;
using fabric::RevokeReason;
using std::chrono::seconds;
using ::testing::HasSubstr;

class Lease : public CoreFixture {
 protected:
  // Words as a reader sees them, through a read-only mapping of its own.
  uint64_t MappedWord(const GrantInfoForHolder& grant) {
    if (!words_) {
      const fabric::ExportedMemory memory = core_->Export();
      absl::StatusOr<UniqueFd> fd = ReopenReadOnly(memory.words_fd);
      EXPECT_TRUE(fd.ok()) << fd.status();
      words_ = *Mapping::Map(fd->get(), memory.words_bytes, Protection::kReadOnly);
    }
    return reinterpret_cast<const uint64_t*>(words_->data())[grant.word_slot.value()];
  }
  std::byte* Memory(FrameAddress frame) {
    return core_->Export().arenas[frame.arena.value()].base + frame.offset;
  }
  OpenResult MustOpenMapped(const std::string& name, uint32_t blocks, ConnectionId connection) {
    OpenSpec spec = Spec(name, blocks);
    spec.connection = connection;
    if (connection != ConnectionId()) core_->ConnectionOpened(connection);
    return MustOpen(spec);
  }
  uint64_t Quarantined() { return core_->Capacity().quarantined_bytes; }

  std::optional<Mapping> words_;
};

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
  ASSERT_TRUE(core_->Abort("a", Me()).ok());
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

// A daemon that is stopped for 15 s expires nobody for it: leases are 10 s.
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

// A client that holds 100 grants is killed: after the lease time capacity is back exactly.
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
  EXPECT_CODE(ErrorCode::kLeaseExpired, CommitAll(opened, 2));
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

// --- Authorize ---

TEST_F(Lease, RangesOutsideTheGrantAreRefusedNamingTheIndex) {
  MustSeal("a", 2);
  const AttachResult reader = MustAttach("a");
  const uint32_t frame = SmallGeometry().frame_bytes();
  EXPECT_TRUE(Read(reader.grant, {1, 0, frame}).ok());
  EXPECT_TRUE(Read(reader.grant, {0, frame - 1, 1}).ok());
  for (const fabric::RemoteRange& r : {fabric::RemoteRange{2, 0, 1},
                                       {UINT32_MAX, 0, 1},
                                       {uint32_t{1} << 31, 0, 1},
                                       {0, 0, 0},
                                       {0, 0, frame + 1},
                                       {0, frame, 1},
                                       {0, frame - 1, 2},
                                       {0, UINT32_MAX, 2},
                                       {0, 16, UINT32_MAX},
                                       {0, UINT32_MAX, UINT32_MAX}}) {
    const std::vector<fabric::RemoteRange> ranges = {{0, 0, 16}, {1, 0, 16}, r};
    const absl::Status status =
        core_->Authorize(reader.grant.id, reader.grant.epoch, Access::kRead, ranges).status();
    EXPECT_CODE(ErrorCode::kOutOfRange, status) << r.block << " " << r.offset << " " << r.length;
    EXPECT_THAT(std::string(status.message()), HasSubstr("range 2:"));
  }
  EXPECT_CODE(ErrorCode::kPermissionDenied, Write(reader.grant, {0, 0, 16}));
  const OpenResult writer = MustOpen("w", 1);
  EXPECT_CODE(ErrorCode::kPermissionDenied, Read(writer.grant, {0, 0, 16}));
}

TEST_F(Lease, TheMemoryIsThatOfTheFrame) {
  const OpenResult writer = MustOpen("a", 3);
  const std::vector<fabric::RemoteRange> ranges = {{2, 16, 32}, {0, 0, 8}};
  const absl::StatusOr<fabric::PinnedRanges> pinned =
      core_->Authorize(writer.grant.id, writer.grant.epoch, Access::kWrite, ranges);
  ASSERT_TRUE(pinned.ok());
  ASSERT_EQ(pinned->memory.size(), 2u);
  EXPECT_EQ(pinned->memory[0].data(), Memory(writer.grant.frames[2]) + 16);
  EXPECT_EQ(pinned->memory[0].size(), 32u);
  EXPECT_EQ(pinned->memory[1].data(), Memory(writer.grant.frames[0]));
}

TEST_F(Lease, OnlyCommittedLayersAreReadAndOnlyUncommittedOnesWritten) {
  const Geometry g = SmallGeometry();
  const OpenResult opened = MustOpen("a", 2);
  const AttachResult reader = MustAttach("a");
  const LayerBlocks layer1{1, 1, 0, 1};
  ASSERT_TRUE(core_->Commit(Key(opened.grant), std::span(&layer1, 1), {}).ok());
  const uint32_t entries1 = g.entry_offset(LayerIndex(1), HeadIndex(0));
  const uint32_t summaries1 = g.summary_offset(LayerIndex(1), HeadIndex(0));
  EXPECT_TRUE(Read(reader.grant, {0, entries1, g.layer_entries_bytes()}).ok());
  EXPECT_TRUE(Read(reader.grant, {0, summaries1, g.layer_summaries_bytes()}).ok());
  EXPECT_CODE(ErrorCode::kNotCommitted, Read(reader.grant, {0, entries1 - 1, 2}));
  EXPECT_CODE(ErrorCode::kNotCommitted, Read(reader.grant, {0, summaries1 - 1, 2}));
  EXPECT_CODE(ErrorCode::kNotCommitted,
              Read(reader.grant, {0, entries1, g.layer_entries_bytes() + 1}))
      << "layer 0's first summary follows layer 1's entries";
  EXPECT_CODE(ErrorCode::kNotCommitted, Read(reader.grant, {1, entries1, 16}));
  EXPECT_CODE(ErrorCode::kNotCommitted, Read(reader.grant, {0, 0, g.frame_bytes()}));
  EXPECT_CODE(ErrorCode::kWrongState, Write(opened.grant, {0, entries1, 16}));
  EXPECT_CODE(ErrorCode::kWrongState, Write(opened.grant, {0, entries1 - 1, 2}));
  EXPECT_CODE(ErrorCode::kWrongState, Write(opened.grant, {0, summaries1, 16}));
  EXPECT_TRUE(Write(opened.grant, {0, 0, g.layer_entries_bytes()}).ok());
  EXPECT_TRUE(Write(opened.grant, {1, 0, g.frame_bytes()}).ok());
}

TEST_F(Lease, HeadsOutsideTheAttachedRangeAreForeign) {
  OpenSpec spec = Spec("a", 1);
  spec.geometry.kv_heads = spec.geometry.total_kv_heads = 4;
  const Geometry& g = spec.geometry;
  const OpenResult opened = MustOpen(spec);
  ASSERT_TRUE(CommitAll(opened, 1).ok());
  ASSERT_TRUE(Seal(opened, 1).ok());
  AttachSpec read = ReadSpec("a");
  read.geometry = g;
  read.first_head = 1;
  read.head_count = 2;
  const AttachResult reader = *core_->Attach(read);
  auto offset = [&](uint32_t layer, uint32_t head) {
    return g.entry_offset(LayerIndex(layer), HeadIndex(head));
  };
  auto summary = [&](uint32_t layer, uint32_t head) {
    return g.summary_offset(LayerIndex(layer), HeadIndex(head));
  };
  const uint32_t entry = g.entry_bytes();
  for (uint32_t layer : {0u, 1u}) {
    EXPECT_TRUE(Read(reader.grant, {0, offset(layer, 1), 2 * entry}).ok());
    EXPECT_TRUE(Read(reader.grant, {0, offset(layer, 2) + 8, 8}).ok());
    EXPECT_TRUE(Read(reader.grant, {0, summary(layer, 1), 2 * g.summary_bytes()}).ok());
    EXPECT_CODE(ErrorCode::kForeign, Read(reader.grant, {0, offset(layer, 0), entry}));
    EXPECT_CODE(ErrorCode::kForeign, Read(reader.grant, {0, offset(layer, 3), 1}));
    EXPECT_CODE(ErrorCode::kForeign, Read(reader.grant, {0, offset(layer, 1) - 1, 2}));
    EXPECT_CODE(ErrorCode::kForeign, Read(reader.grant, {0, offset(layer, 1), 2 * entry + 1}));
    EXPECT_CODE(ErrorCode::kForeign, Read(reader.grant, {0, summary(layer, 0), 1}));
    EXPECT_CODE(ErrorCode::kForeign,
                Read(reader.grant, {0, summary(layer, 2), g.summary_bytes() + 1}));
  }
  // From an attached head over all that lies between to an attached head of the next layer.
  const absl::Status status =
      Read(reader.grant, {0, offset(0, 2), offset(1, 1) - offset(0, 2) + 8});
  EXPECT_CODE(ErrorCode::kForeign, status);
  EXPECT_THAT(std::string(status.message()), HasSubstr("layer 0, head 3"));
  EXPECT_CODE(ErrorCode::kForeign, Read(reader.grant, {0, 0, g.frame_bytes()}));
}

// The check's answer against the plain meaning of the rule, for every small range of a frame.
TEST(RangeCheckTest, AgreesWithTheRuleByteByByte) {
  Geometry g;
  g.layers = 2;
  g.kv_heads = 3;
  g.head_dim = 1;
  g.block_tokens = 2;
  g.element_type = ElementType::kFloat16;
  g.total_kv_heads = 3;
  const uint32_t frame = g.frame_bytes();
  for (uint32_t first = 0; first < 3; ++first) {
    for (uint32_t count = 1; first + count <= 3; ++count) {
      const RangeChecker checker(g, 1, first, count);
      for (uint32_t begin = 0; begin <= frame; ++begin) {
        for (uint32_t end = begin; end <= frame + 1; ++end) {
          bool foreign = false;
          std::set<uint32_t> entry_layers, summary_layers;
          for (uint32_t byte = begin; byte < std::min(end, frame); ++byte) {
            const bool summary = byte >= g.summaries_offset();
            const uint32_t piece = summary ? (byte - g.summaries_offset()) / g.summary_bytes()
                                           : byte / g.entry_bytes();
            (summary ? summary_layers : entry_layers).insert(piece / 3);
            foreign |= piece % 3 < first || piece % 3 >= first + count;
          }
          const ErrorCode want = begin == end || end > frame ? ErrorCode::kOutOfRange
                                 : foreign                   ? ErrorCode::kForeign
                                                             : ErrorCode::kUnspecified;
          TouchedLayers touched;
          const absl::Status status = checker.Check({0, begin, end - begin}, 0, touched);
          ASSERT_EQ(ErrorCodeOf(status), want)
              << "[" << begin << ", " << end << ") heads " << first << "+" << count << status;
          if (!status.ok()) continue;
          ASSERT_EQ(touched.entries.any(), !entry_layers.empty());
          ASSERT_EQ(touched.summaries.any(), !summary_layers.empty());
          if (touched.entries.any()) {
            ASSERT_EQ(touched.entries.first, *entry_layers.begin());
            ASSERT_EQ(touched.entries.last, *entry_layers.rbegin());
          }
          if (touched.summaries.any()) {
            ASSERT_EQ(touched.summaries.first, *summary_layers.begin());
            ASSERT_EQ(touched.summaries.last, *summary_layers.rbegin());
          }
        }
      }
    }
  }
}

// --- What outlives a grant ---

TEST_F(Lease, APinKeepsTheFramesOfAGrantThatIsGone) {
  const OpenResult opened = MustSeal("a", 512);  // the whole pool
  const AttachResult reader = MustAttach("a");
  const fabric::RemoteRange range{0, 0, 16};
  absl::StatusOr<fabric::PinnedRanges> pinned =
      core_->Authorize(reader.grant.id, reader.grant.epoch, Access::kRead, std::span(&range, 1));
  ASSERT_TRUE(pinned.ok());
  ASSERT_TRUE(core_->Abort("a", Me()).ok());
  EXPECT_CODE(ErrorCode::kStale, Read(reader.grant, range));
  EXPECT_EQ(UsedBytes(), 512 * FrameBytes());
  EXPECT_CODE(ErrorCode::kCapacity, core_->Open(Spec("b", 1)).status());
  EXPECT_TRUE(core_->Grants(GrantId(), 10).empty()) << "it is no grant any more";
  std::shared_ptr<const void> second = pinned->pin;
  pinned->pin.reset();
  EXPECT_EQ(UsedBytes(), 512 * FrameBytes());
  second.reset();
  EXPECT_EQ(UsedBytes(), 0u);
}

// Every way a mapped writer's grant can end leaves its frames in quarantine until the fence or the
// connection's close.
TEST_F(Lease, AMappedWritersFramesWaitForItsFence) {
  const ConnectionId connection(11);
  enum class End { kAbort, kExpiry, kRelease };
  for (End end : {End::kAbort, End::kExpiry, End::kRelease}) {
    for (bool close : {false, true}) {
      const ConnectionId c = close ? ConnectionId(20 + static_cast<int>(end)) : connection;
      const OpenResult opened = MustOpenMapped("a", 512, c);
      switch (end) {
        case End::kAbort:
          ASSERT_TRUE(core_->Abort("a", Me()).ok());
          break;
        case End::kExpiry:
          Serve(seconds(11));
          break;
        case End::kRelease:
          ASSERT_TRUE(Release(opened.grant).ok());
          break;
      }
      EXPECT_NE(MappedWord(opened.grant), opened.grant.epoch.value());
      EXPECT_EQ(Quarantined(), 512 * FrameBytes());
      EXPECT_EQ(UsedBytes(), 512 * FrameBytes());
      EXPECT_EQ(core_->Capacity().grants_writer, 0u);
      ASSERT_EQ(core_->Grants(GrantId(), 10).size(), 1u);
      EXPECT_TRUE(core_->Grants(GrantId(), 10)[0].quarantined);
      EXPECT_CODE(ErrorCode::kCapacity, core_->Open(Spec("b", 1)).status());
      core_->WriterFenced(ConnectionId(999), opened.grant.id);  // not its connection
      core_->ConnectionClosed(ConnectionId(998));
      EXPECT_EQ(Quarantined(), 512 * FrameBytes());
      if (close) {
        core_->ConnectionClosed(c);
      } else {
        core_->WriterFenced(c, opened.grant.id);
      }
      EXPECT_EQ(Quarantined(), 0u);
      EXPECT_EQ(UsedBytes(), 0u);
      core_->WriterFenced(c, opened.grant.id);  // twice is no error
    }
  }
}

TEST_F(Lease, AFenceBeforeTheEndLeavesNoQuarantine) {
  const ConnectionId connection(11);
  const OpenResult opened = MustOpenMapped("a", 4, connection);
  core_->WriterFenced(connection, opened.grant.id);
  // It has promised to write no more: no more frames and no writes by another way.
  EXPECT_CODE(ErrorCode::kWrongState, core_->Extend(Key(opened.grant), 1).status());
  EXPECT_CODE(ErrorCode::kWrongState, Write(opened.grant, {0, 0, 16}));
  ASSERT_TRUE(CommitAll(opened, 4).ok());
  ASSERT_TRUE(Seal(opened, 2).ok());
  EXPECT_EQ(Quarantined(), 0u);
  EXPECT_EQ(UsedBytes(), 2 * FrameBytes());
}

TEST_F(Lease, SealedFramesAreInUseAndOnlySparesQuarantined) {
  const ConnectionId connection(11);
  const OpenResult opened = MustOpenMapped("a", 4, connection);
  ASSERT_TRUE(CommitAll(opened, 4).ok());
  ASSERT_TRUE(Seal(opened, 3).ok());
  EXPECT_EQ(UsedBytes(), 4 * FrameBytes());
  EXPECT_EQ(Quarantined(), FrameBytes());
  ASSERT_TRUE(ReleaseSequence("a").ok());
  EXPECT_EQ(Quarantined(), 4 * FrameBytes()) << "the unfenced writer alone holds them now";
  core_->ConnectionClosed(connection);
  EXPECT_EQ(UsedBytes(), 0u);
}

TEST_F(Lease, AFenceWhileARequestIsInFlightLeavesThePinAlone) {
  const ConnectionId connection(11);
  const OpenResult opened = MustOpenMapped("a", 4, connection);
  const fabric::RemoteRange range{0, 0, 16};
  absl::StatusOr<fabric::PinnedRanges> pinned =
      core_->Authorize(opened.grant.id, opened.grant.epoch, Access::kWrite, std::span(&range, 1));
  ASSERT_TRUE(pinned.ok());
  ASSERT_TRUE(core_->Abort("a", Me()).ok());
  core_->WriterFenced(connection, opened.grant.id);
  EXPECT_EQ(Quarantined(), 0u);
  EXPECT_EQ(UsedBytes(), 4 * FrameBytes());
  pinned->pin.reset();
  EXPECT_EQ(UsedBytes(), 0u);
}

// Otherwise a caller that makes a number up would leave frames in quarantine for ever.
TEST_F(Lease, AConnectionThatNobodyHasOpensNothing) {
  OpenSpec spec = Spec("a", 1);
  spec.connection = ConnectionId(5);
  EXPECT_CODE(ErrorCode::kPeerLost, core_->Open(spec).status());
  core_->ConnectionOpened(ConnectionId(5));
  MustOpen(spec);
  core_->ConnectionClosed(ConnectionId(5));
  spec.name = "b";
  EXPECT_CODE(ErrorCode::kPeerLost, core_->Open(spec).status());
}

// The reason for quarantine. A writer whose grant is gone may still have a store on its way through
// its mapping. Where the daemon was not told of the mapping, the frame is another's by then and the
// store lands in it; where it was told, the frame is nobody's until the writer has fenced.
TEST_F(Lease, ALateWriteLandsInAnothersFrameWithoutQuarantineAndInNobodysWithIt) {
  for (bool told : {false, true}) {
    const ConnectionId connection(told ? 11 : 0);
    const OpenResult a = MustOpenMapped("a", 256, connection);
    std::byte* const mapped = Memory(a.grant.frames[0]);
    ASSERT_TRUE(core_->Abort("a", Me()).ok());
    const OpenResult b = MustOpen("b", 256);
    const bool shared = std::find(b.grant.frames.begin(), b.grant.frames.end(),
                                  a.grant.frames[0]) != b.grant.frames.end();
    EXPECT_EQ(shared, !told);
    for (FrameAddress f : b.grant.frames) std::memset(Memory(f), 0xb, FrameBytes());
    std::memset(mapped, 0xa, 64);  // the late write
    size_t corrupted = 0;
    for (FrameAddress f : b.grant.frames) corrupted += Memory(f)[0] != std::byte{0xb};
    EXPECT_EQ(corrupted, told ? 0u : 1u);
    ASSERT_TRUE(core_->Abort("b", Me()).ok());
    core_->WriterFenced(connection, a.grant.id);
    EXPECT_EQ(UsedBytes(), 0u);
  }
}

TEST_F(Lease, QuarantinedFramesCountInTheSums) {
  const OpenResult opened = MustOpenMapped("a", 7, ConnectionId(3));
  ASSERT_TRUE(core_->Abort("a", Me()).ok());
  const CapacityInfo c = core_->Capacity();
  EXPECT_EQ(c.free_bytes + c.used_bytes + c.overhead_bytes, c.pool_bytes);
  EXPECT_EQ(c.quarantined_bytes, 7 * FrameBytes());
  EXPECT_EQ(c.used_bytes, c.quarantined_bytes);
}

}  // namespace
}  // namespace oasiskv::server
