// Bytes of nobody: what a frame held before is read by no other tenant (rule 7 of
// server/lease/README.md).
#include <algorithm>
#include <atomic>
#include <thread>

#include "common/pause_point.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/server/core_fixture.h"

namespace oasiskv::server {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

class CoreClear : public CoreFixture {
 protected:
  static constexpr uint32_t kAll = 512;  // frames of the pool
  static Identity Of(const std::string& tenant) { return {Me().model, Me().revision, tenant}; }

  void StartWith(ClearFrames clear) {
    CoreOptions options = SmallOptions();
    options.clear_frames = clear;
    Start(options);
  }
  // A writer over shm: the daemon does not see what it writes.
  OpenResult Open(const std::string& tenant, uint32_t blocks) {
    core_->ConnectionOpened(ConnectionId(1));
    OpenSpec spec = Spec("kv", blocks);
    spec.identity = Of(tenant);
    spec.connection = ConnectionId(1);
    return MustOpen(spec);
  }
  void Leave(const std::string& tenant) {
    ASSERT_TRUE(core_->Abort({"kv"}, Of(tenant)).ok());
    core_->ConnectionClosed(ConnectionId(1));
    ASSERT_EQ(UsedBytes(), 0u);
  }
  // One tenant's bytes in every frame of the pool, and the tenant gone.
  void Fill(const std::string& tenant, std::byte value) {
    WriteAll(Open(tenant, kAll).grant, kAll, SmallGeometry(), value);
    Leave(tenant);
  }
  // Commits and seals without writing, attaches, and reads every frame.
  std::vector<std::byte> Steal(const std::string& tenant, uint32_t blocks = kAll) {
    const OpenResult opened = Open(tenant, blocks);
    const LayerBlocks all{0, SmallGeometry().layers, 0, blocks};
    EXPECT_TRUE(core_->Commit(Key(opened.grant), std::span(&all, 1), {}).ok());
    EXPECT_TRUE(Seal(opened, blocks).ok());
    AttachSpec spec = ReadSpec("kv");
    spec.identity = Of(tenant);
    const absl::StatusOr<AttachResult> attached = core_->Attach(spec);
    EXPECT_TRUE(attached.ok()) << attached.status();
    std::vector<std::byte> out;
    for (uint32_t b = 0; b < blocks; ++b) {
      const fabric::RemoteRange frame{b, 0, SmallGeometry().frame_bytes()};
      const auto got = core_->Authorize(attached->grant.id, attached->grant.epoch,
                                        fabric::Access::kRead, std::span(&frame, 1));
      EXPECT_TRUE(got.ok()) << got.status();
      out.insert(out.end(), got->memory[0].begin(), got->memory[0].end());
    }
    Leave(tenant);
    return out;
  }
};

TEST_F(CoreClear, AnotherTenantFindsZeros) {
  Fill("ann", std::byte{0xaa});
  EXPECT_THAT(Steal("bob"), Each(std::byte{0}));
  EXPECT_GE(core_->Counters().cleared_bytes, kAll * FrameBytes());
}

TEST_F(CoreClear, ExtendGivesZerosToo) {
  Fill("ann", std::byte{0xaa});
  const OpenResult opened = Open("bob", 0);
  const absl::StatusOr<ExtendResult> more = Extend(opened.grant, kAll);
  ASSERT_TRUE(more.ok()) << more.status();
  const fabric::RemoteRange frame{kAll - 1, 0, SmallGeometry().frame_bytes()};
  const auto got = core_->Authorize(opened.grant.id, opened.grant.epoch, fabric::Access::kWrite,
                                    std::span(&frame, 1));
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_THAT(got->memory[0], Each(std::byte{0}));
}

TEST_F(CoreClear, ATenantAloneCostsNothing) {
  Fill("ann", std::byte{0xaa});
  Fill("ann", std::byte{0xbb});
  core_->Scrub(Millis(1000));
  EXPECT_EQ(core_->Counters().cleared_bytes, 0u);
}

TEST_F(CoreClear, AlwaysClearsForTheSameTenant) {
  StartWith(ClearFrames::kAlways);
  Fill("ann", std::byte{0xaa});
  EXPECT_THAT(Steal("ann"), Each(std::byte{0}));
}

TEST_F(CoreClear, NeverIsWhatItSays) {
  StartWith(ClearFrames::kNever);
  Fill("ann", std::byte{0xaa});
  EXPECT_THAT(Steal("bob"), Each(std::byte{0xaa}));
  EXPECT_EQ(core_->Counters().cleared_bytes, 0u);
}

TEST_F(CoreClear, ScrubbedMemoryMakesNoCallWait) {
  Fill("ann", std::byte{0xaa});
  Leave((WriteAll(Open("bob", 1).grant, 1), "bob"));  // now there are two tenants
  const uint64_t waits = core_->Counters().clear_waits;
  core_->Scrub(Millis(60000));
  EXPECT_THAT(Steal("bob"), Each(std::byte{0}));
  EXPECT_EQ(core_->Counters().clear_waits, waits);
}

// A call that finds its memory in the scrubber's hands waits; it is not told that the pool is full.
TEST_F(CoreClear, MemoryInTheScrubbersHandsIsNotMissing) {
  StartWith(ClearFrames::kAlways);
  Fill("ann", std::byte{0xaa});
  constexpr char kHeld[] = "core.scrub.held";
  PausePoints::Arm(kHeld);
  std::thread scrubber([&] { core_->Scrub(Duration(0)); });
  ASSERT_TRUE(PausePoints::WaitReached(kHeld));
  std::atomic<bool> opened{false};
  std::thread writer([&] {
    Open("ann", kAll);
    opened = true;
  });
  while (core_->Counters().clear_waits == 0) std::this_thread::yield();
  EXPECT_FALSE(opened);
  PausePoints::Release(kHeld);
  scrubber.join();
  writer.join();
  EXPECT_EQ(UsedBytes(), kAll * FrameBytes());
}

TEST_F(CoreClear, WhatAWatchedWriterDidNotWriteIsNotCommitted) {
  const OpenResult opened = MustOpen("kv", 2);
  const Geometry g = SmallGeometry();
  const LayerBlocks layer1{1, 1, 0, 1}, all{0, 2, 0, 1};
  auto commit = [&](const LayerBlocks& range) {
    return core_->Commit(Key(opened.grant), std::span(&range, 1), {});
  };
  auto write = [&](uint32_t offset, uint32_t length) {
    const fabric::RemoteRange range{0, offset, length};
    EXPECT_TRUE(Write(opened.grant, range).ok());
    core_->Written(opened.grant.id, opened.grant.epoch, std::span(&range, 1));
  };
  EXPECT_CODE(ErrorCode::kNotCommitted, commit(layer1));
  write(g.layer_entries_bytes(), g.layer_entries_bytes());
  EXPECT_CODE(ErrorCode::kNotCommitted, commit(layer1)) << "its summaries are missing";
  write(g.summaries_offset() + g.layer_summaries_bytes(), g.layer_summaries_bytes());
  EXPECT_TRUE(commit(layer1).ok());
  EXPECT_TRUE(commit(layer1).ok()) << "a repeat";
  const absl::Status early = commit(all);
  EXPECT_CODE(ErrorCode::kNotCommitted, early);
  EXPECT_THAT(std::string(early.message()), HasSubstr("block 0 of \"kv\""));
  write(0, g.layer_entries_bytes() - 1);
  write(g.summaries_offset(), g.layer_summaries_bytes());
  EXPECT_CODE(ErrorCode::kNotCommitted, commit(all)) << "one byte is missing";
  write(g.layer_entries_bytes() - 1, 1);
  EXPECT_TRUE(commit(all).ok());
}

}  // namespace
}  // namespace oasiskv::server
