// What goes over RDMA lanes of UCX: one-sided reads and writes, and how they end.
#include "tests/fabric/ucx_rdma_fixture.h"

namespace oasiskv::fabric::ucx {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

bool Has(const EndpointStats& stats, const std::string& transport, bool one_sided) {
  for (const TransportCount& count : stats.transports) {
    if (count.transport == transport && count.one_sided == one_sided) return count.connections > 0;
  }
  return false;
}

TEST_F(UcxRdmaTest, BytesGoBothWaysAndTheDaemonSeesNothingOfThem) {
  Serve();
  auto connection = Connect();
  ASSERT_NE(connection, nullptr);
  EXPECT_EQ(connection->Describe(), absl::StrCat("ucx ", address_, ", rc_verbs/rxe0:1, one-sided"));
  EXPECT_NE(connection->connection_id(), ConnectionId(0));
  EXPECT_THAT(authority_.opened(), ElementsAre(connection->connection_id()));
  EXPECT_TRUE(Has(server_->Stats(), "rc_verbs", true));

  std::vector<std::byte> into;
  const auto reads = pool_.Grant(1, Access::kRead);
  for (const uint32_t bytes : {1u, 64u, 8192u, 65'536u}) {
    const auto pieces = Scattered(kFrames, bytes, into);
    ASSERT_EQ(connection->Read(reads, pieces, Soon())->Wait(), absl::OkStatus()) << bytes;
    ASSERT_TRUE(Hold(pieces)) << bytes;
  }
  // All of it in one piece a frame: far more than the window.
  const auto pieces = Scattered(kFrames, kFrameBytes, into);
  ASSERT_EQ(connection->Read(reads, pieces, Soon())->Wait(), absl::OkStatus());
  ASSERT_TRUE(Hold(pieces));

  const auto writes = pool_.Grant(2, Access::kWrite);
  std::vector<std::byte> from(3 * kFrameBytes);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + i / 251);
  const std::vector<WritePiece> put = {{{5, 0, kFrameBytes}, from.data()},
                                       {{9, 3, 100}, from.data() + kFrameBytes},
                                       {{77, 8, 200'000}, from.data() + 2 * kFrameBytes}};
  ASSERT_EQ(connection->Write(writes, put, Soon())->Wait(), absl::OkStatus());
  // The outcome is known when the bytes are there, not before.
  for (const WritePiece& piece : put) {
    EXPECT_EQ(std::memcmp(pool_.frame(piece.into.block) + piece.into.offset, piece.from,
                          piece.into.length),
              0);
  }
  const ConnectionStats client = connection->Stats();
  EXPECT_EQ(client.request_bytes, 0u);
  EXPECT_EQ(client.grant_checks, 6u);
  EXPECT_GT(client.bytes_read, kFrames * kFrameBytes);
  const EndpointStats daemon = server_->Stats();
  EXPECT_EQ(daemon.requests, 0u);
  EXPECT_EQ(daemon.bytes_read + daemon.bytes_written, 0u);
}

TEST_F(UcxRdmaTest, WhoDoesNotWantKeysGoesByMessages) {
  Serve();
  auto connection = Connect(false);
  ASSERT_NE(connection, nullptr);
  EXPECT_EQ(connection->Describe(), absl::StrCat("ucx ", address_, ", tcp/lo, active messages"));
  EXPECT_EQ(connection->connection_id(), ConnectionId(0));
  EXPECT_THAT(authority_.opened(), IsEmpty());
  std::vector<std::byte> into;
  const auto pieces = Scattered(64, 8192, into);
  ASSERT_EQ(connection->Read(pool_.Grant(1, Access::kRead), pieces, Soon())->Wait(),
            absl::OkStatus());
  EXPECT_TRUE(Hold(pieces));
  EXPECT_GT(connection->Stats().request_bytes, 0u);
  EXPECT_EQ(server_->Stats().bytes_read, into.size());
  EXPECT_TRUE(Has(server_->Stats(), "tcp", false));
  connection.reset();
  EXPECT_TRUE(Eventually([&] { return !Has(server_->Stats(), "tcp", false); }));
}

TEST_F(UcxRdmaTest, ADaemonThatGivesNoKeysGoesByMessages) {
  Serve(false);
  auto connection = Connect();
  ASSERT_NE(connection, nullptr);
  EXPECT_THAT(connection->Describe(), HasSubstr("active messages"));
  EXPECT_EQ(connection->connection_id(), ConnectionId(0));
  std::vector<std::byte> into;
  const auto pieces = Scattered(64, 8192, into);
  ASSERT_EQ(connection->Read(pool_.Grant(1, Access::kRead), pieces, Soon())->Wait(),
            absl::OkStatus());
  EXPECT_TRUE(Hold(pieces));
  EXPECT_GT(server_->Stats().requests, 0u);
}

// RDMA lanes that the operator asked for, and a daemon that gives no keys all the same.
TEST_F(UcxRdmaTest, MessagesGoOverRdmaLanesToo) {
  ASSERT_EQ(::setenv("UCX_TLS", "rc,tcp", 1), 0);
  Serve(false);
  auto connection = Connect();
  ASSERT_EQ(::unsetenv("UCX_TLS"), 0);
  ASSERT_NE(connection, nullptr);
  EXPECT_EQ(connection->Describe(),
            absl::StrCat("ucx ", address_, ", rc_verbs/rxe0:1, active messages"));
  std::vector<std::byte> into;
  const auto pieces = Scattered(64, 8192, into);
  ASSERT_EQ(connection->Read(pool_.Grant(1, Access::kRead), pieces, Soon())->Wait(),
            absl::OkStatus());
  EXPECT_TRUE(Hold(pieces));
  EXPECT_TRUE(Has(server_->Stats(), "rc_verbs", false));
  EXPECT_EQ(server_->Stats().bytes_read, into.size());
}

TEST_F(UcxRdmaTest, WhatLiesOutsideIsRefusedBeforeAnythingMoves) {
  Serve();
  auto connection = Connect();
  ASSERT_NE(connection, nullptr);
  std::vector<std::byte> into(4096, std::byte{0x5a});
  const auto read = [&](const std::shared_ptr<GrantView>& grant, RemoteRange range) {
    const std::vector<ReadPiece> pieces = {{range, into.data()}};
    return connection->Read(grant, pieces, Soon())->Wait();
  };
  const auto refused = [&](const std::shared_ptr<GrantView>& grant, RemoteRange range) {
    return ErrorCodeOf(read(grant, range)) == ErrorCode::kOutOfRange;
  };
  auto grant = pool_.Grant(1, Access::kRead);
  EXPECT_TRUE(refused(grant, {kFrames, 0, 64}));
  EXPECT_TRUE(refused(grant, {0, kFrameBytes - 63, 64}));
  auto odd = std::make_shared<GrantView>(*grant);
  odd->frames[0] = {ArenaId(0), verbs::kArenaBytes - 32};
  EXPECT_TRUE(refused(odd, {0, 0, 64}));
  odd->frames[0] = {ArenaId(7), 0};
  EXPECT_TRUE(refused(odd, {0, 0, 64}));
  odd->frames[0] = grant->frames[0];
  odd->word_slot = WordSlot(verbs::kWords);
  EXPECT_TRUE(refused(odd, {0, 0, 64}));
  EXPECT_TRUE(Untouched(into));
  EXPECT_EQ(read(grant, {0, 0, 64}), absl::OkStatus());  // the connection is as good as before
}

// Rule 2: what was revoked while its bytes were on their way is not given out.
TEST_F(UcxRdmaTest, TheGrantWordIsReadAfterTheData) {
  Serve();
  auto connection = Connect();
  ASSERT_NE(connection, nullptr);
  auto grant = pool_.Grant(1, Access::kRead);
  std::vector<std::byte> into;
  const auto pieces = Scattered(16, 8192, into);
  PausePoints::Arm("ucx.before_grant_word");
  auto transfer = connection->Read(grant, pieces, Soon());
  ASSERT_TRUE(PausePoints::WaitReached("ucx.before_grant_word"));
  EXPECT_TRUE(Hold(pieces));  // all data is here
  EXPECT_FALSE(transfer->Done());
  pool_.SetWord(grant->word_slot, RevokedWord(RevokeReason::kExpired, grant->epoch));
  PausePoints::Release("ucx.before_grant_word");
  EXPECT_EQ(ErrorCodeOf(transfer->Wait()), ErrorCode::kLeaseExpired);
  // The same for a writer's: its bytes arrived, but it must not think that they count.
  auto writer = pool_.Grant(2, Access::kWrite);
  const std::vector<WritePiece> put = {{{3, 0, 8192}, into.data()}};
  PausePoints::Arm("ucx.before_grant_word");
  auto write = connection->Write(writer, put, Soon());
  ASSERT_TRUE(PausePoints::WaitReached("ucx.before_grant_word"));
  EXPECT_EQ(std::memcmp(pool_.frame(3), into.data(), 8192), 0);
  pool_.SetWord(writer->word_slot, RevokedWord(RevokeReason::kAborted, writer->epoch));
  PausePoints::Release("ucx.before_grant_word");
  EXPECT_EQ(ErrorCodeOf(write->Wait()), ErrorCode::kStale);
  EXPECT_EQ(connection->Stats().expired, 1u);
  EXPECT_EQ(connection->Stats().stale, 1u);
}

// Rule 4: what arrives after the end touches nothing.
TEST_F(UcxRdmaTest, ACancelledBatchGivesItsBuffersBack) {
  Serve();
  auto connection = Connect();
  ASSERT_NE(connection, nullptr);
  const auto grant = pool_.Grant(1, Access::kRead);
  std::vector<std::byte> into;
  const auto pieces = Scattered(64, 8192, into);
  PausePoints::Arm("ucx.client.before_copy");
  auto transfer = connection->Read(grant, pieces, Soon());
  ASSERT_TRUE(PausePoints::WaitReached("ucx.client.before_copy"));
  transfer->Cancel();
  std::fill(into.begin(), into.end(), std::byte{0x5a});
  PausePoints::Release("ucx.client.before_copy");
  EXPECT_EQ(ErrorCodeOf(transfer->Wait()), ErrorCode::kCancelled);
  std::vector<std::byte> other;
  const auto more = Scattered(64, 8192, other);
  ASSERT_EQ(connection->Read(grant, more, Soon())->Wait(), absl::OkStatus());
  EXPECT_TRUE(Hold(more));
  EXPECT_TRUE(Untouched(into));
}

// Rule 3: the progress thread may be held up, or the device silent.
TEST_F(UcxRdmaTest, EveryBatchEndsAtItsDeadline) {
  Serve();
  auto connection = Connect();
  ASSERT_NE(connection, nullptr);
  const auto grant = pool_.Grant(1, Access::kRead);
  std::vector<std::byte> into, silent;
  const auto pieces = Scattered(64, 8192, into);
  PausePoints::Arm("ucx.client.before_copy");
  auto transfer = connection->Read(grant, pieces, In(200));
  ASSERT_TRUE(PausePoints::WaitReached("ucx.client.before_copy"));
  EXPECT_EQ(ErrorCodeOf(transfer->Wait()), ErrorCode::kDeadlineExceeded);
  std::fill(into.begin(), into.end(), std::byte{0x5a});
  PausePoints::Release("ucx.client.before_copy");
  {
    const Silence silence;
    const auto more = Scattered(64, 65'536, silent);
    EXPECT_EQ(ErrorCodeOf(connection->Read(grant, more, In(300))->Wait()),
              ErrorCode::kDeadlineExceeded);
    std::fill(silent.begin(), silent.end(), std::byte{0x5a});
    EXPECT_TRUE(connection->Health().ok());
  }
  std::vector<std::byte> other;
  const auto last = Scattered(64, 8192, other);
  ASSERT_EQ(connection->Read(grant, last, Soon())->Wait(), absl::OkStatus());
  EXPECT_TRUE(Hold(last));
  EXPECT_TRUE(Untouched(into));
  EXPECT_TRUE(Untouched(silent));
}

TEST_F(UcxRdmaTest, ADeviceThatStaysSilentLosesTheConnection) {
  Serve();
  auto connection = Connect();
  ASSERT_NE(connection, nullptr);
  std::vector<std::byte> into;
  const auto pieces = Scattered(64, 65'536, into);
  const Silence silence;
  auto transfer = connection->Read(pool_.Grant(1, Access::kRead), pieces, Soon());
  EXPECT_EQ(ErrorCodeOf(transfer->Wait()), ErrorCode::kPeerLost) << transfer->Wait();
  EXPECT_EQ(ErrorCodeOf(connection->Health()), ErrorCode::kPeerLost);
}

TEST_F(UcxRdmaTest, AFenceComesAfterTheLastWriteOfItsGrant) {
  Serve();
  auto connection = Connect();
  ASSERT_NE(connection, nullptr);
  const auto grant = pool_.Grant(1, Access::kWrite);
  std::vector<std::byte> from(kFrameBytes, std::byte{0x77});
  const std::vector<WritePiece> put = {{{4, 0, kFrameBytes}, from.data()}};
  std::thread fencer;
  {
    const Silence silence;
    // Ends, while what it put is still on its way.
    EXPECT_EQ(ErrorCodeOf(connection->Write(grant, put, In(300))->Wait()),
              ErrorCode::kDeadlineExceeded);
    fencer = std::thread([&] { connection->FenceWriter(grant->id); });
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    EXPECT_THAT(authority_.fenced(), IsEmpty());
  }
  fencer.join();
  ASSERT_TRUE(Eventually([&] { return !authority_.fenced().empty(); }));
  EXPECT_THAT(authority_.fenced(), ElementsAre(Pair(connection->connection_id(), grant->id)));
  // The fence said that nothing comes any more: so all of it is there.
  EXPECT_EQ(std::memcmp(pool_.frame(4), from.data(), kFrameBytes), 0);
  EXPECT_EQ(ErrorCodeOf(connection->Write(grant, put, Soon())->Wait()), ErrorCode::kStale);
  const auto other = pool_.Grant(2, Access::kWrite);
  EXPECT_EQ(connection->Write(other, put, Soon())->Wait(), absl::OkStatus());
}

// The daemon asks now and then, and its device says that there is no answer.
TEST_F(UcxRdmaTest, AClientWhoseDeviceIsSilentIsGone) {
  Serve();
  auto connection = Connect();
  ASSERT_NE(connection, nullptr);
  const Silence silence;
  EXPECT_TRUE(Eventually([&] { return !authority_.closed().empty(); }));
}

// The daemon cannot take a key back; it can take the queue pair away.
TEST_F(UcxRdmaTest, AWriterThatIsDisconnectedWritesNoMore) {
  Serve();
  auto connection = Connect();
  ASSERT_NE(connection, nullptr);
  const ConnectionId id = connection->connection_id();
  EXPECT_FALSE(server_->Close(ConnectionId(id.value() + 1)));
  EXPECT_THAT(authority_.closed(), IsEmpty());
  const auto grant = pool_.Grant(1, Access::kWrite);
  std::vector<std::byte> from(kFrameBytes, std::byte{0x77});
  const std::vector<WritePiece> put = {{{4, 0, kFrameBytes}, from.data()}};
  // Writes without a pause, so that some are on their way when the end comes.
  std::thread writer([&] {
    while (connection->Write(grant, put, Soon())->Wait().ok()) {
    }
  });
  ASSERT_TRUE(Eventually([&] { return pool_.frame(4)[0] == std::byte{0x77}; }));
  EXPECT_TRUE(server_->Close(id));
  EXPECT_FALSE(server_->Close(id));
  ASSERT_TRUE(Eventually([&] { return !authority_.closed().empty(); }));
  std::memset(pool_.frame(4), 0x11, kFrameBytes);
  writer.join();
  EXPECT_EQ(ErrorCodeOf(connection->Health()), ErrorCode::kPeerLost);
  EXPECT_FALSE(connection->Write(grant, put, Soon())->Wait().ok());
  EXPECT_THAT(authority_.closed(), Contains(id));
  for (uint64_t i = 0; i < kFrameBytes; ++i) ASSERT_EQ(pool_.frame(4)[i], std::byte{0x11}) << i;
}

TEST_F(UcxRdmaTest, ManyThreadsShareAConnection) {
  Serve();
  auto connection = Connect();
  ASSERT_NE(connection, nullptr);
  const auto reads = pool_.Grant(1, Access::kRead);
  const auto writes = pool_.Grant(2, Access::kWrite);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<std::byte> into;
      // Each writer has a frame of its own at the end, which the readers leave alone.
      const uint32_t block = kFrames - 1 - static_cast<uint32_t>(t);
      std::vector<std::byte> from(4096, static_cast<std::byte>(t + 1));
      const std::vector<WritePiece> put = {{{block, 0, 4096}, from.data()}};
      for (int round = 0; round < 10; ++round) {
        const auto pieces = Scattered(32, 8192, into);
        auto transfer = connection->Read(reads, pieces, Soon());
        if (!connection->Write(writes, put, Soon())->Wait().ok() ||
            std::memcmp(pool_.frame(block), from.data(), from.size()) != 0 ||
            !transfer->Wait().ok() || !Hold(pieces)) {
          ++wrong;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

}  // namespace
}  // namespace oasiskv::fabric::ucx
