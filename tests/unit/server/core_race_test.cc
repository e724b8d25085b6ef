// The races of the core (above all: a grant's word changes before its frames are freed), each held
// open at its pause point, and a stress test for ThreadSanitizer.
#include <atomic>
#include <random>
#include <thread>

#include "common/pause_point.h"
#include "tests/unit/server/core_fixture.h"

namespace oasiskv::server {
namespace {

using fabric::Access;

constexpr char kWordChanged[] = "lease.revoke.word_changed";
constexpr char kPinned[] = "lease.authorize.pinned";

class Race : public CoreFixture {
 protected:
  void TearDown() override { EXPECT_EQ(PausePoints::Waiting(), 0); }

  // Runs `ending` in a thread that stops between the word's change and letting go of frames, and
  // `meanwhile` there.
  template <typename Ending, typename Meanwhile>
  void Between(Ending ending, Meanwhile meanwhile) {
    PausePoints::Arm(kWordChanged);
    std::thread thread(ending);
    const bool reached = PausePoints::WaitReached(kWordChanged);
    EXPECT_TRUE(reached);
    if (reached) meanwhile();
    PausePoints::Release(kWordChanged);
    thread.join();
  }
};

// Whatever ends a grant, its word changes while every frame is still held: at no moment can another
// sequence's bytes be in a frame whose grant word is still valid.
TEST_F(Race, TheWordChangesBeforeAnyFrameIsLetGo) {
  enum class End { kAbort, kReleaseReader, kExpire, kSeal };
  for (End end : {End::kAbort, End::kReleaseReader, End::kExpire, End::kSeal}) {
    SCOPED_TRACE(static_cast<int>(end));
    wire::Grant grant;
    if (end == End::kSeal) {
      const OpenResult opened = MustOpen("a", 512);
      ASSERT_TRUE(CommitAll(opened, 512).ok());
      grant = opened.grant;
    } else {
      MustSeal("a", 512);  // the whole pool
      grant = MustAttach("a").grant;
      if (end != End::kAbort) {
        ASSERT_TRUE(ReleaseSequence("a").ok());
      }
    }
    ASSERT_EQ(Word(grant), grant.epoch.value());
    auto ending = [&] {
      switch (end) {
        case End::kAbort:
          EXPECT_TRUE(core_->Abort({"a"}, Me()).ok());
          break;
        case End::kReleaseReader:
          EXPECT_TRUE(Release(grant).ok());
          break;
        case End::kExpire:
          Serve(std::chrono::seconds(11));
          break;
        case End::kSeal:
          EXPECT_TRUE(core_->Seal(Key(grant), 16, {}, "").ok());
          break;
      }
    };
    Between(ending, [&] {
      EXPECT_NE(Word(grant), grant.epoch.value());
      EXPECT_FALSE(fabric::CheckGrantWord(Word(grant), grant.epoch).ok());
      EXPECT_EQ(UsedBytes(), 512 * FrameBytes());
      EXPECT_CODE(ErrorCode::kCapacity, core_->Open(Spec("b", 1)).status());
      EXPECT_FALSE(Read(grant, {0, 0, 16}).ok());
      // Other calls do not wait while the frames are freed, and ending it again does no harm.
      EXPECT_TRUE(Release(grant).ok());
    });
    EXPECT_EQ(UsedBytes(), end == End::kSeal ? FrameBytes() : 0u);
    ASSERT_TRUE(core_->Abort({"a"}, Me()).ok());
  }
}

TEST_F(Race, AFrameGoesBackOnlyWhenNoGrantPinsIt) {
  MustSeal("a", 512);
  const AttachResult one = MustAttach("a"), two = MustAttach("a");
  ASSERT_TRUE(ReleaseSequence("a").ok());
  ASSERT_TRUE(Release(one.grant).ok());
  EXPECT_CODE(ErrorCode::kCapacity, core_->Open(Spec("b", 1)).status());
  EXPECT_TRUE(Read(two.grant, {511, 0, 16}).ok());
  ASSERT_TRUE(Release(two.grant).ok());
  MustOpen("b", 512);
}

TEST_F(Race, AGrantRevokedBehindAnAuthorizedRequestKeepsItsFramesUntilThePinGoes) {
  MustSeal("a", 512);
  const AttachResult reader = MustAttach("a");
  PausePoints::Arm(kPinned);
  absl::StatusOr<fabric::PinnedRanges> pinned;
  std::thread request([&] {
    const fabric::RemoteRange range{7, 0, 16};
    pinned =
        core_->Authorize(reader.grant.id, reader.grant.epoch, Access::kRead, std::span(&range, 1));
  });
  ASSERT_TRUE(PausePoints::WaitReached(kPinned));
  ASSERT_TRUE(core_->Abort({"a"}, Me()).ok());
  EXPECT_CODE(ErrorCode::kCapacity, core_->Open(Spec("b", 1)).status());
  PausePoints::Release(kPinned);
  request.join();
  ASSERT_TRUE(pinned.ok());
  EXPECT_EQ(UsedBytes(), 512 * FrameBytes());
  pinned->pin.reset();
  EXPECT_EQ(UsedBytes(), 0u);
}

// Fence, close and unpin may come between the two steps of a grant's end; the frames are freed
// exactly once.
TEST_F(Race, WhatArrivesBetweenTheTwoStepsFreesNothingTwice) {
  for (int round = 0; round < 3; ++round) {
    const ConnectionId connection(100 + round);
    OpenSpec spec = Spec("a", 8);
    spec.connection = connection;
    core_->ConnectionOpened(connection);
    const OpenResult opened = MustOpen(spec);
    const fabric::RemoteRange range{0, 0, 16};
    absl::StatusOr<fabric::PinnedRanges> pinned =
        core_->Authorize(opened.grant.id, opened.grant.epoch, Access::kWrite, std::span(&range, 1));
    ASSERT_TRUE(pinned.ok());
    Between([&] { EXPECT_TRUE(core_->Abort({"a"}, Me()).ok()); },
            [&] {
              if (round == 0) core_->WriterFenced(connection, opened.grant.id);
              if (round == 1) core_->ConnectionClosed(connection);
              pinned->pin.reset();
              EXPECT_EQ(UsedBytes(), 8 * FrameBytes());
            });
    if (round == 2) core_->WriterFenced(connection, opened.grant.id);
    EXPECT_EQ(UsedBytes(), 0u);
    EXPECT_EQ(core_->Capacity().quarantined_bytes, 0u);
  }
}

// A slot must not be used for a new grant before the end of its old grant is complete.
TEST_F(Race, ASlotIsFreeOnlyAfterTheFramesAre) {
  CoreOptions o = SmallOptions();
  o.max_grants = 1;
  Start(o);
  MustSeal("a", 1);
  const AttachResult reader = MustAttach("a");
  Between([&] { EXPECT_TRUE(Release(reader.grant).ok()); },
          [&] { EXPECT_CODE(ErrorCode::kCapacity, core_->Attach(ReadSpec("a")).status()); });
  MustAttach("a");
}

// Every frame holds its sequence's number; a reader checks frame and word as a one-sided reader
// does. Eight threads do everything at the same time, under ThreadSanitizer too.
TEST_F(Race, HammerOfWritersReadersEvictorsAndTicks) {
  constexpr uint64_t kEnoughChecked = 20000, kEnoughSealed = 2000;
  constexpr int kNames = 6;
  constexpr uint32_t kBlocks = 24;
  std::atomic<uint64_t> next_value{1}, checked{0}, sealed{0};
  std::atomic<bool> stop{false};
  auto name = [](int i) { return "s" + std::to_string(i); };
  auto writer = [&](int seed) {
    std::mt19937 random(seed);
    for (int round = 0; checked < kEnoughChecked || sealed < kEnoughSealed; ++round) {
      OpenSpec spec = Spec(name(static_cast<int>(random() % kNames)), kBlocks / 2);
      const ConnectionId connection(random() % 2 == 0 ? seed * 10000000 + round + 1 : 0);
      spec.connection = connection;
      if (connection != ConnectionId()) core_->ConnectionOpened(connection);
      absl::StatusOr<OpenResult> opened = core_->Open(spec);
      if (!opened.ok()) {  // the name is taken, or the pool is full
        core_->ConnectionClosed(connection);
        if (random() % 8 == 0) (void)ReleaseSequence(spec.name);
        std::this_thread::yield();
        continue;
      }
      const GrantKey key = Key(opened->grant);
      (void)core_->Extend(key, kBlocks, kBlocks / 2);
      const uint64_t value = next_value.fetch_add(1);
      for (uint32_t b = 0; b < kBlocks / 2; ++b) {
        const fabric::RemoteRange range{b, 0, 8};
        absl::StatusOr<fabric::PinnedRanges> memory =
            core_->Authorize(key.id, key.epoch, Access::kWrite, std::span(&range, 1));
        if (!memory.ok()) break;  // evicted meanwhile
        std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(memory->memory[0].data()))
            .store(value, std::memory_order_relaxed);
      }
      const LayerBlocks all{0, 2, 0, kBlocks / 2};
      if (core_->Commit(key, std::span(&all, 1), {}).ok() &&
          core_->Seal(key, kBlocks / 2 * 16, {}, std::to_string(value)).ok()) {
        ++sealed;
      }
      if (random() % 2 == 0) core_->WriterFenced(connection, key.id);
      core_->ConnectionClosed(connection);
    }
  };
  auto reader = [&](int seed) {
    std::mt19937 random(seed);
    const fabric::ExportedMemory exported = core_->Export();
    while (!stop.load()) {
      const std::string which = name(static_cast<int>(random() % kNames));
      absl::StatusOr<AttachResult> attached = core_->Attach(ReadSpec(which));
      if (!attached.ok() || attached->state != SequenceState::kSealed) {
        if (attached.ok()) {
          EXPECT_TRUE(Release(attached->grant).ok());
        }
        (void)core_->CheckSealed(which, Me());
        std::this_thread::sleep_for(Millis(1));
        continue;
      }
      const uint64_t expected = std::stoull(attached->blob);
      for (FrameAddress f : attached->grant.frames) {
        // One-sided: the reader does not ask the daemon before the read, and checks the word after it.
        const uint64_t seen =
            std::atomic_ref<uint64_t>(
                *reinterpret_cast<uint64_t*>(exported.arenas[f.arena.value()].base + f.offset))
                .load(std::memory_order_acquire);  // the word is read after it
        if (core_->GrantWord(attached->grant.id) != attached->grant.epoch.value()) break;
        EXPECT_EQ(seen, expected);
        ++checked;
      }
      const GrantKey key = Key(attached->grant);
      (void)core_->Renew(std::span(&key, 1), Millis(200));
      if (random() % 4 != 0) {
        EXPECT_TRUE(Release(attached->grant).ok());
      }
      if (random() % 3 == 0) (void)ReleaseSequence(which);
    }
  };
  std::vector<std::thread> writers, others;
  for (int i = 1; i <= 3; ++i) writers.emplace_back(writer, i);
  for (int i = 1; i <= 3; ++i) others.emplace_back(reader, 100 + i);
  others.emplace_back([&] {
    std::mt19937 random(7);
    while (!stop.load()) {
      (void)core_->Abort({name(static_cast<int>(random() % kNames))}, Me());
      std::this_thread::sleep_for(Millis(1));
    }
  });
  others.emplace_back([&] {
    while (!stop.load()) {
      clock_.Advance(Millis(20));
      core_->Tick(clock_.Now());
      const CapacityInfo c = core_->Capacity();
      EXPECT_EQ(c.free_bytes + c.used_bytes + c.overhead_bytes, c.pool_bytes);
      EXPECT_LE(c.quarantined_bytes, c.used_bytes);
      (void)core_->Sequences(SequenceId(), 100, "");
      (void)core_->Grants(GrantId(), 100);
      (void)core_->Counters();
      std::this_thread::sleep_for(Millis(1));
    }
  });
  for (std::thread& t : writers) t.join();
  stop = true;
  for (std::thread& t : others) t.join();
  for (int i = 0; i < kNames; ++i) ASSERT_TRUE(core_->Abort({name(i)}, Me()).ok());
  EXPECT_EQ(UsedBytes(), 0u);
  EXPECT_TRUE(core_->Grants(GrantId(), 10).empty());
}

}  // namespace
}  // namespace oasiskv::server
