// What stays after a grant has ended: pins, and the quarantine of frames that a writer has mapped.
#include <algorithm>
#include <cstring>

#include "tests/unit/server/core_lease_fixture.h"

namespace oasiskv::server {
namespace {

using fabric::Access;
using std::chrono::seconds;

using Quarantine = LeaseFixture;

TEST_F(Quarantine, APinKeepsTheFramesOfAGrantThatIsGone) {
  const OpenResult opened = MustSeal("a", 512);  // the whole pool
  const AttachResult reader = MustAttach("a");
  const fabric::RemoteRange range{0, 0, 16};
  absl::StatusOr<fabric::PinnedRanges> pinned =
      core_->Authorize(reader.grant.id, reader.grant.epoch, Access::kRead, std::span(&range, 1));
  ASSERT_TRUE(pinned.ok());
  ASSERT_TRUE(core_->Abort({"a"}, Me()).ok());
  EXPECT_CODE(ErrorCode::kStale, Read(reader.grant, range));
  EXPECT_EQ(UsedBytes(), 512 * FrameBytes());
  EXPECT_CODE(ErrorCode::kCapacity, core_->Open(Spec("b", 1)).status());
  EXPECT_TRUE(core_->Grants(GrantId(), 10).empty()) << "it is not a grant any more";
  std::shared_ptr<const void> second = pinned->pin;
  pinned->pin.reset();
  EXPECT_EQ(UsedBytes(), 512 * FrameBytes());
  second.reset();
  EXPECT_EQ(UsedBytes(), 0u);
}

// Every way a mapped writer's grant can end leaves its frames in quarantine until the fence or the
// connection's close.
TEST_F(Quarantine, AMappedWritersFramesWaitForItsFence) {
  const ConnectionId connection(11);
  enum class End { kAbort, kExpiry, kRelease };
  for (End end : {End::kAbort, End::kExpiry, End::kRelease}) {
    for (bool close : {false, true}) {
      const ConnectionId c = close ? ConnectionId(20 + static_cast<int>(end)) : connection;
      const OpenResult opened = MustOpenMapped("a", 512, c);
      switch (end) {
        case End::kAbort:
          ASSERT_TRUE(core_->Abort({"a"}, Me()).ok());
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
      core_->WriterFenced(c, opened.grant.id);  // twice is not an error
    }
  }
}

TEST_F(Quarantine, AFenceBeforeTheEndLeavesNoQuarantine) {
  const ConnectionId connection(11);
  const OpenResult opened = MustOpenMapped("a", 4, connection);
  core_->WriterFenced(connection, opened.grant.id);
  // It has promised to write no more: no more frames and no writes by another way.
  EXPECT_CODE(ErrorCode::kWrongState, Extend(opened.grant, 1).status());
  EXPECT_CODE(ErrorCode::kWrongState, Write(opened.grant, {0, 0, 16}));
  ASSERT_TRUE(CommitAll(opened, 4).ok());
  ASSERT_TRUE(Seal(opened, 2).ok());
  EXPECT_EQ(Quarantined(), 0u);
  EXPECT_EQ(UsedBytes(), 2 * FrameBytes());
}

TEST_F(Quarantine, SealedFramesAreInUseAndOnlySparesQuarantined) {
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

TEST_F(Quarantine, AFenceWhileARequestIsInFlightLeavesThePinAlone) {
  const ConnectionId connection(11);
  const OpenResult opened = MustOpenMapped("a", 4, connection);
  const fabric::RemoteRange range{0, 0, 16};
  absl::StatusOr<fabric::PinnedRanges> pinned =
      core_->Authorize(opened.grant.id, opened.grant.epoch, Access::kWrite, std::span(&range, 1));
  ASSERT_TRUE(pinned.ok());
  ASSERT_TRUE(core_->Abort({"a"}, Me()).ok());
  core_->WriterFenced(connection, opened.grant.id);
  EXPECT_EQ(Quarantined(), 0u);
  EXPECT_EQ(UsedBytes(), 4 * FrameBytes());
  pinned->pin.reset();
  EXPECT_EQ(UsedBytes(), 0u);
}

// Otherwise a caller with an invented number would leave frames in quarantine for ever.
TEST_F(Quarantine, AConnectionThatNobodyHasOpensNothing) {
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
// its mapping. If the daemon was not told of the mapping, the frame belongs to another sequence by
// then, and the store lands in it; if it was told, the frame is not used until the writer has fenced.
TEST_F(Quarantine, ALateWriteLandsInAnothersFrameWithoutQuarantineAndInNobodysWithIt) {
  for (bool told : {false, true}) {
    const ConnectionId connection(told ? 11 : 0);
    const OpenResult a = MustOpenMapped("a", 256, connection);
    std::byte* const mapped = Memory(a.grant.frames[0]);
    ASSERT_TRUE(core_->Abort({"a"}, Me()).ok());
    const OpenResult b = MustOpen("b", 256);
    const bool shared = std::find(b.grant.frames.begin(), b.grant.frames.end(),
                                  a.grant.frames[0]) != b.grant.frames.end();
    EXPECT_EQ(shared, !told);
    for (FrameAddress f : b.grant.frames) std::memset(Memory(f), 0xb, FrameBytes());
    std::memset(mapped, 0xa, 64);  // the late write
    size_t corrupted = 0;
    for (FrameAddress f : b.grant.frames) corrupted += Memory(f)[0] != std::byte{0xb};
    EXPECT_EQ(corrupted, told ? 0u : 1u);
    ASSERT_TRUE(core_->Abort({"b"}, Me()).ok());
    core_->WriterFenced(connection, a.grant.id);
    EXPECT_EQ(UsedBytes(), 0u);
  }
}

TEST_F(Quarantine, QuarantinedFramesCountInTheSums) {
  const OpenResult opened = MustOpenMapped("a", 7, ConnectionId(3));
  ASSERT_TRUE(core_->Abort({"a"}, Me()).ok());
  const CapacityInfo c = core_->Capacity();
  EXPECT_EQ(c.free_bytes + c.used_bytes + c.overhead_bytes, c.pool_bytes);
  EXPECT_EQ(c.quarantined_bytes, 7 * FrameBytes());
  EXPECT_EQ(c.used_bytes, c.quarantined_bytes);
}

}  // namespace
}  // namespace oasiskv::server
