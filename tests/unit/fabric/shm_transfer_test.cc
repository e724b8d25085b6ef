// Reads and writes through the shm fabric, and the rule that a read never returns another sequence's
// bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "common/fabric/write_gate.h"
#include "tests/unit/fabric/shm_fixture.h"

namespace oasiskv::fabric::shm {
namespace {

class ShmTransfer : public ShmTest {
 protected:
  void SetUp() override { Serve(); }
  absl::Status Read(Connection& connection, std::shared_ptr<const GrantView> grant,
                    std::span<const ReadPiece> pieces) {
    return connection.Read(std::move(grant), pieces, Soon())->Wait();
  }
};

TEST_F(ShmTransfer, ReadsScatteredPiecesRightAndCountsThem) {
  auto connection = Connect(Access::kRead);
  auto grant = pool_.Grant(1, Access::kRead);
  std::vector<std::byte> buffer(64 * 8192);
  std::vector<ReadPiece> pieces;
  std::mt19937 random(7);
  for (uint32_t i = 0; i < 64; ++i) {  // local neighbours, remote ones not
    pieces.push_back(
        {{static_cast<uint32_t>(random() % 32), (i % 8) * 8192, 8192}, buffer.data() + i * 8192});
  }
  auto transfer = connection->Read(grant, pieces, Soon());
  EXPECT_TRUE(transfer->Done());
  ASSERT_TRUE(transfer->Wait().ok()) << transfer->Wait();
  for (const ReadPiece& piece : pieces) {
    for (uint32_t i = 0; i < piece.from.length; ++i) {
      ASSERT_EQ(piece.into[i], TestPool::Expected(piece.from, i));
    }
  }
  const std::vector<ReadPiece> neighbours = {{{0, 0, 100}, buffer.data()},
                                             {{0, 100, 100}, buffer.data() + 100},
                                             {{1, 200, 100}, buffer.data() + 200}};
  ASSERT_TRUE(Read(*connection, grant, neighbours).ok());
  ASSERT_TRUE(Read(*connection, grant, {}).ok());

  const ConnectionStats stats = connection->Stats();
  EXPECT_EQ(stats.reads, 3u);
  EXPECT_EQ(stats.pieces, 67u);
  EXPECT_GE(stats.requests, 3u);
  EXPECT_LE(stats.requests, 66u);
  EXPECT_EQ(stats.bytes_read, 64u * 8192 + 300);
  EXPECT_EQ(stats.grant_checks, 3u);
  EXPECT_EQ(stats.stale + stats.expired + stats.deadline + stats.failed + stats.cancelled, 0u);
  EXPECT_EQ(stats.writes + stats.bytes_written + stats.request_bytes, 0u);
}

TEST_F(ShmTransfer, JoinsPiecesOverAdjacentFrames) {
  auto connection = Connect(Access::kRead);
  auto grant = pool_.Grant(1, Access::kRead);
  std::vector<std::byte> buffer(2 * kFrameBytes);
  const std::vector<ReadPiece> pieces = {{{0, 0, kFrameBytes}, buffer.data()},
                                         {{2, 0, kFrameBytes}, buffer.data() + kFrameBytes}};
  ASSERT_TRUE(Read(*connection, grant, pieces).ok());
  EXPECT_EQ(connection->Stats().requests, 1u);
  EXPECT_TRUE(std::equal(buffer.begin(), buffer.end(), pool_.arena(0)));
}

TEST_F(ShmTransfer, RefusesBadPiecesBeforeAnythingMoves) {
  auto connection = Connect(Access::kRead);
  auto grant = pool_.Grant(1, Access::kRead);
  std::vector<std::byte> buffer(kFrameBytes, std::byte{0xee});
  for (const RemoteRange& bad : {RemoteRange{32, 0, 1}, RemoteRange{0, 0, 0},
                                 RemoteRange{0, 1, kFrameBytes}, RemoteRange{0, 0xffffffff, 2}}) {
    const std::vector<ReadPiece> pieces = {{{0, 0, 64}, buffer.data()}, {bad, buffer.data()}};
    const absl::Status status = Read(*connection, grant, pieces);
    EXPECT_EQ(ErrorCodeOf(status), ErrorCode::kOutOfRange) << status;
    EXPECT_NE(status.message().find("piece 1"), absl::string_view::npos) << status;
  }
  EXPECT_EQ(std::count(buffer.begin(), buffer.end(), std::byte{0xee}), kFrameBytes);
  EXPECT_EQ(connection->Stats().failed, 4u);
  EXPECT_EQ(connection->Stats().grant_checks, 0u);
}

TEST_F(ShmTransfer, AGrantThatPointsOutsideTheArenasIsAnErrorNotACrash) {
  auto connection = Connect(Access::kRead);
  std::vector<std::byte> buffer(64);
  const std::vector<ReadPiece> pieces = {{{0, 0, 64}, buffer.data()}};
  for (const FrameAddress& wrong :
       {FrameAddress{ArenaId(kArenas), 0}, FrameAddress{ArenaId(0), kArenaBytes - 63},
        FrameAddress{ArenaId(0), ~uint64_t{0} - 10}, FrameAddress{ArenaId(0xffff), 0}}) {
    auto grant = pool_.Grant(1, Access::kRead);
    grant->frames[0] = wrong;
    EXPECT_EQ(ErrorCodeOf(Read(*connection, grant, pieces)), ErrorCode::kInternal);
  }
  auto grant = pool_.Grant(1, Access::kRead);
  grant->word_slot = WordSlot(kWords);
  EXPECT_EQ(ErrorCodeOf(Read(*connection, grant, pieces)), ErrorCode::kInternal);
  EXPECT_EQ(ErrorCodeOf(Read(*connection, nullptr, pieces)), ErrorCode::kInvalidArgument);
}

TEST_F(ShmTransfer, BuffersNeedNoRegistrationAndDeviceMemoryIsNotReached) {
  auto connection = Connect(Access::kRead);
  std::byte memory[8];
  auto registration = connection->RegisterBuffer(memory);
  ASSERT_TRUE(registration.ok()) << registration.status();
  EXPECT_EQ(*registration, nullptr);
  const absl::Status refused = connection->RegisterDeviceBuffer({.bytes = 8}).status();
  EXPECT_EQ(ErrorCodeOf(refused), ErrorCode::kUnsupported);
  EXPECT_NE(refused.message().find("fabric shm"), absl::string_view::npos) << refused;
}

TEST_F(ShmTransfer, DirectionsAreKeptApart) {
  auto reader = Connect(Access::kRead);
  auto writer = Connect(Access::kWrite);
  std::byte byte{};
  const std::vector<ReadPiece> reads = {{{0, 0, 1}, &byte}};
  const std::vector<WritePiece> writes = {{{0, 0, 1}, &byte}};
  auto read_grant = pool_.Grant(1, Access::kRead);
  auto write_grant = pool_.Grant(2, Access::kWrite);
  EXPECT_EQ(ErrorCodeOf(Read(*writer, write_grant, reads)), ErrorCode::kPermissionDenied);
  EXPECT_EQ(ErrorCodeOf(writer->Write(read_grant, writes, Soon())->Wait()),
            ErrorCode::kPermissionDenied);
  EXPECT_EQ(ErrorCodeOf(reader->Write(write_grant, writes, Soon())->Wait()),
            ErrorCode::kPermissionDenied);
  EXPECT_TRUE(Read(*writer, read_grant, reads).ok());
}

// The rule itself: a read has the old bytes, or a mix, in its buffer and has not checked the word yet
// when the grant is revoked and its memory given to another. Fails when the check comes before the
// copy.
TEST_F(ShmTransfer, AGrantRevokedBetweenTheDataAndTheCheckIsSeen) {
  struct Case {
    RevokeReason reason;
    ErrorCode code;
  };
  auto connection = Connect(Access::kRead);
  for (const Case& c : {Case{RevokeReason::kReleased, ErrorCode::kStale},
                        Case{RevokeReason::kAborted, ErrorCode::kStale},
                        Case{RevokeReason::kExpired, ErrorCode::kLeaseExpired}}) {
    auto grant = pool_.Grant(3, Access::kRead);
    std::vector<std::byte> buffer(kFrameBytes);
    const std::vector<ReadPiece> pieces = {{{0, 0, kFrameBytes}, buffer.data()}};
    absl::Status status;
    PausePoints::Arm("shm.read.before_check");
    std::thread reading([&] { status = Read(*connection, grant, pieces); });
    ASSERT_TRUE(PausePoints::WaitReached("shm.read.before_check"));
    pool_.SetWord(grant->word_slot, RevokedWord(c.reason, grant->epoch));
    PausePoints::Release("shm.read.before_check");
    reading.join();
    EXPECT_EQ(ErrorCodeOf(status), c.code) << status;
  }
  EXPECT_EQ(connection->Stats().stale, 2u);
  EXPECT_EQ(connection->Stats().expired, 1u);
  EXPECT_EQ(connection->Stats().grant_checks, 3u);
}

TEST_F(ShmTransfer, AFrameReusedInMidCopyNeverCountsAsRead) {
  auto connection = Connect(Access::kRead);
  auto grant = pool_.Grant(4, Access::kRead);
  std::vector<std::byte> buffer(2 << 20);
  std::vector<ReadPiece> pieces;
  for (uint32_t i = 0; i < 32; ++i) {
    pieces.push_back({{i, 0, kFrameBytes}, buffer.data() + i * kFrameBytes});
  }
  absl::Status status;
  PausePoints::Arm("shm.read.mid_copy");
  std::thread reading([&] { status = Read(*connection, grant, pieces); });
  ASSERT_TRUE(PausePoints::WaitReached("shm.read.mid_copy"));
  auto next = pool_.Grant(4 + kWords, Access::kRead);  // takes the slot, and with it the frames
  std::fill_n(pool_.arena(0), kArenaBytes, std::byte{0x99});
  PausePoints::Release("shm.read.mid_copy");
  reading.join();
  EXPECT_EQ(ErrorCodeOf(status), ErrorCode::kStale) << status;
  EXPECT_EQ(ErrorCodeOf(Read(*connection, grant, pieces)), ErrorCode::kStale);
  EXPECT_TRUE(Read(*connection, next, pieces).ok());
}

TEST_F(ShmTransfer, TheDeadlineEndsABatchInMidCopy) {
  auto connection = Connect(Access::kRead);
  auto grant = pool_.Grant(5, Access::kRead);
  std::vector<std::byte> buffer(2 << 20, std::byte{0xee});
  std::vector<ReadPiece> pieces;
  for (uint32_t i = 0; i < 32; ++i) {
    pieces.push_back({{i, 0, kFrameBytes}, buffer.data() + i * kFrameBytes});
  }
  EXPECT_EQ(ErrorCodeOf(connection->Read(grant, pieces, Clock::Real().Now())->Wait()),
            ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(buffer.front(), std::byte{0xee});
  EXPECT_EQ(connection->Stats().bytes_read, 0u);

  const MonotonicTime deadline = Clock::Real().Now() + std::chrono::seconds(1);
  absl::Status status;
  PausePoints::Arm("shm.read.mid_copy");
  std::thread reading([&] { status = connection->Read(grant, pieces, deadline)->Wait(); });
  const bool reached = PausePoints::WaitReached("shm.read.mid_copy");
  EXPECT_TRUE(reached);
  EXPECT_TRUE(Eventually([&] { return Clock::Real().Now() >= deadline; }));
  PausePoints::Release("shm.read.mid_copy");
  reading.join();
  EXPECT_EQ(ErrorCodeOf(status), ErrorCode::kDeadlineExceeded) << status;
  EXPECT_EQ(buffer.back(), std::byte{0xee});
  EXPECT_EQ(connection->Stats().bytes_read, uint64_t{1} << 20);
  EXPECT_EQ(connection->Stats().deadline, 2u);
}

TEST_F(ShmTransfer, WritesLandInTheArena) {
  auto connection = Connect(Access::kWrite);
  auto grant = pool_.Grant(6, Access::kWrite);
  std::vector<std::byte> bytes(3000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 13);
  const std::vector<WritePiece> pieces = {{{1, 100, 2000}, bytes.data()},
                                          {{3, 0, 1000}, bytes.data() + 2000}};
  ASSERT_TRUE(connection->Write(grant, pieces, Soon())->Wait().ok());
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.begin() + 2000, pool_.arena(1) + 100));
  EXPECT_TRUE(std::equal(bytes.begin() + 2000, bytes.end(), pool_.arena(1) + kFrameBytes));
  EXPECT_EQ(pool_.arena(1)[99], TestPool::Pattern(1, 99));
  EXPECT_EQ(pool_.arena(1)[2100], TestPool::Pattern(1, 2100));
  EXPECT_EQ(connection->Stats().bytes_written, 3000u);
  EXPECT_EQ(connection->Stats().requests, 2u);

  pool_.SetWord(grant->word_slot, RevokedWord(RevokeReason::kExpired, grant->epoch));
  EXPECT_EQ(ErrorCodeOf(connection->Write(grant, pieces, Soon())->Wait()),
            ErrorCode::kLeaseExpired);
  EXPECT_EQ(connection->Stats().bytes_written, 3000u);
}

TEST_F(ShmTransfer, AWriteUnderAGrantRevokedMeanwhileIsNoSuccess) {
  auto connection = Connect(Access::kWrite);
  auto grant = pool_.Grant(7, Access::kWrite);
  std::vector<std::byte> bytes(64);
  const std::vector<WritePiece> pieces = {{{0, 0, 64}, bytes.data()}};
  absl::Status status;
  PausePoints::Arm("shm.write.before_copy");
  std::thread writing([&] { status = connection->Write(grant, pieces, Soon())->Wait(); });
  ASSERT_TRUE(PausePoints::WaitReached("shm.write.before_copy"));
  pool_.SetWord(grant->word_slot, RevokedWord(RevokeReason::kReleased, grant->epoch));
  PausePoints::Release("shm.write.before_copy");
  writing.join();
  EXPECT_EQ(ErrorCodeOf(status), ErrorCode::kStale) << status;
}

// The daemon reuses a writer's memory once it has the fence. So the fence must wait for a write that
// has passed its check, also when the grant is revoked meanwhile. Fails when FenceWriter does not
// wait.
TEST_F(ShmTransfer, TheFenceWaitsForTheSleepingWriteAndNothingLandsAfterIt) {
  auto connection = Connect(Access::kWrite);
  auto grant = pool_.Grant(8, Access::kWrite);
  auto other = pool_.Grant(9, Access::kWrite);
  std::vector<std::byte> bytes(64, std::byte{0x77});
  const std::vector<WritePiece> pieces = {{{0, 0, 64}, bytes.data()}};
  const std::vector<WritePiece> elsewhere = {{{1, 0, 64}, bytes.data()}};
  absl::Status status;
  PausePoints::Arm("shm.write.before_copy");
  std::thread writing([&] { status = connection->Write(grant, pieces, Soon())->Wait(); });
  ASSERT_TRUE(PausePoints::WaitReached("shm.write.before_copy"));

  std::atomic<bool> fence_returned{false};
  std::thread fencing([&] {
    connection->FenceWriter(grant->id);
    fence_returned = true;
  });
  // The fence is closing once a new write is refused; until then a probe of no pieces goes through.
  EXPECT_TRUE(Eventually([&] {
    return ErrorCodeOf(connection->Write(grant, {}, Soon())->Wait()) == ErrorCode::kStale;
  }));
  // Grants do not hold each other up. And a fence of another grant, sent later on the same socket,
  // has arrived: so would ours have, if it had not waited.
  EXPECT_TRUE(connection->Write(other, elsewhere, Soon())->Wait().ok());
  connection->FenceWriter(other->id);
  EXPECT_TRUE(Eventually([&] { return authority_.fenced().size() == 1; }));
  EXPECT_EQ(authority_.fenced()[0].second, other->id);
  EXPECT_FALSE(fence_returned);

  PausePoints::Release("shm.write.before_copy");
  writing.join();
  fencing.join();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(Eventually([&] { return authority_.fenced().size() == 2; }));
  EXPECT_EQ(authority_.fenced()[1], std::make_pair(connection->connection_id(), grant->id));
  EXPECT_EQ(pool_.arena(0)[0], std::byte{0x77});

  // After the fence the memory is another's, although this grant's word is not changed yet.
  pool_.arena(0)[0] = std::byte{0x55};
  EXPECT_EQ(ErrorCodeOf(connection->Write(grant, pieces, Soon())->Wait()), ErrorCode::kStale);
  EXPECT_EQ(pool_.arena(0)[0], std::byte{0x55});
  connection->FenceWriter(grant->id);  // a second promise says nothing new
  EXPECT_EQ(server_->Stats().requests, 2u);
}

TEST_F(ShmTransfer, TheGateForgetsOnlyTheOldestFences) {
  WriteGate gate(/*max_closed=*/2);
  EXPECT_TRUE(gate.Close(GrantId(1)));
  EXPECT_TRUE(gate.Close(GrantId(2)));
  EXPECT_FALSE(gate.Close(GrantId(2)));
  EXPECT_FALSE(WriteGate::Pass(gate, GrantId(1)));
  EXPECT_TRUE(gate.Close(GrantId(3)));
  EXPECT_TRUE(WriteGate::Pass(gate, GrantId(1)));
  EXPECT_FALSE(WriteGate::Pass(gate, GrantId(2)));
  EXPECT_FALSE(WriteGate::Pass(gate, GrantId(3)));
}

TEST_F(ShmTransfer, SixteenThreadsShareOneConnection) {
  constexpr int kThreads = 16, kBatches = 60;
  auto connection = Connect(Access::kWrite);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    // Half of the threads read the first 16 blocks, half write one of the others each.
    auto grant = pool_.Grant(20 + t, t % 2 == 0 ? Access::kRead : Access::kWrite);
    threads.emplace_back([&, t, grant] {
      std::mt19937 random(t);
      std::vector<std::byte> buffer(8 * 4096, static_cast<std::byte>(t));
      for (int b = 0; b < kBatches; ++b) {
        if (t % 2 == 1) {
          const std::vector<WritePiece> pieces = {
              {{static_cast<uint32_t>(16 + t), 0, static_cast<uint32_t>(buffer.size())},
               buffer.data()}};
          if (!connection->Write(grant, pieces, Soon())->Wait().ok()) ++wrong;
          continue;
        }
        std::vector<ReadPiece> pieces;
        for (uint32_t i = 0; i < 8; ++i) {
          pieces.push_back({{static_cast<uint32_t>(random() % 16), 4096 * (i % 16), 4096},
                            buffer.data() + i * 4096});
        }
        if (!connection->Read(grant, pieces, Soon())->Wait().ok()) ++wrong;
        for (const ReadPiece& piece : pieces) {
          for (uint32_t i = 0; i < 4096; i += 61) {
            if (piece.into[i] != TestPool::Expected(piece.from, i)) ++wrong;
          }
        }
      }
      connection->FenceWriter(grant->id);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  const ConnectionStats stats = connection->Stats();
  EXPECT_EQ(stats.reads, kThreads / 2 * kBatches);
  EXPECT_EQ(stats.writes, kThreads / 2 * kBatches);
  EXPECT_EQ(stats.pieces, kThreads / 2 * kBatches * 9);
  EXPECT_EQ(stats.grant_checks, kThreads * kBatches);
  EXPECT_EQ(stats.bytes_read, stats.bytes_written);
  for (int t = 1; t < kThreads; t += 2) {
    EXPECT_EQ(pool_.arena((16 + t) % 2)[(16 + t) / 2 * kFrameBytes], static_cast<std::byte>(t));
  }
  EXPECT_TRUE(Eventually([&] { return authority_.fenced().size() == kThreads; }));
}

}  // namespace
}  // namespace oasiskv::fabric::shm
