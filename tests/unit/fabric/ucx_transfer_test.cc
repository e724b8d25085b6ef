// Batches over the ucx fabric: bytes, refusals, many threads, batches that share messages.
#include <algorithm>
#include <random>
#include <thread>

#include "tests/unit/fabric/ucx_fixture.h"

namespace oasiskv::fabric::ucx {
namespace {

using UcxTransferTest = UcxTest;

TEST_F(UcxTransferTest, ReadsPiecesAndCoalescesAdjacentOnes) {
  Serve();
  auto connection = Connect();
  auto grant = authority_.Grant(1, Access::kRead);
  Buffers buffers;
  for (uint32_t i = 0; i < 10; ++i) buffers.Add({3, i * 8192, 8192});  // one range
  buffers.Add({4, 1, 1});
  buffers.Add({15, kFrameBytes - 7, 7});
  auto transfer = connection->Read(grant, buffers.Pieces(), In(60'000));
  ASSERT_TRUE(transfer->Wait().ok()) << transfer->Wait();
  EXPECT_TRUE(transfer->Done());
  EXPECT_TRUE(buffers.HoldPattern());
  transfer->Cancel();
  EXPECT_TRUE(transfer->Wait().ok()) << "the outcome changed";
  EXPECT_GT(transfer->Times().prepare.count(), 0);
  EXPECT_GT(transfer->Times().wire.count(), 0);
  const ConnectionStats stats = connection->Stats();
  EXPECT_EQ(stats.reads, 1u);
  EXPECT_EQ(stats.pieces, 12u);
  EXPECT_EQ(stats.requests, 3u);
  EXPECT_EQ(stats.bytes_read, buffers.bytes());
  EXPECT_EQ(stats.request_bytes, 40u + 3 * 12);
  EXPECT_EQ(stats.grant_checks, 1u);
  EXPECT_EQ(stats.stale + stats.expired + stats.deadline + stats.cancelled + stats.failed, 0u);
  EXPECT_EQ(server_->Stats().bytes_read, buffers.bytes());
  EXPECT_EQ(server_->Stats().requests, 1u);
  EXPECT_EQ(server_->Stats().connections, 1u);
  EXPECT_EQ(connection->connection_id().value(), 0u);
  EXPECT_NE(connection->Describe().find(server_->address()), std::string::npos);
}

TEST_F(UcxTransferTest, ReadsWholeFramesAndOddSizesThroughASmallWindow) {
  Serve();
  auto connection = Connect(/*window_bytes=*/64 << 10);
  auto grant = authority_.Grant(1, Access::kRead);
  Buffers buffers;
  for (uint32_t block = 0; block < kFrames; ++block) {
    buffers.Add({block, 0, kFrameBytes});
    buffers.Add({block, 12345, 131073});
  }
  const absl::Status status = ReadAll(*connection, grant, buffers);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(buffers.HoldPattern());
}

TEST_F(UcxTransferTest, ReadsAHundredThousandScatteredPieces) {
  Serve();
  auto connection = Connect();
  auto grant = authority_.Grant(1, Access::kRead);
  std::mt19937 random(1);
  Buffers buffers;
  for (int i = 0; i < 100'000; ++i) {
    const uint32_t length = 1 + random() % 600;
    buffers.Add({static_cast<uint32_t>(random() % kFrames),
                 static_cast<uint32_t>(random() % (kFrameBytes - length)), length});
  }
  const absl::Status status = ReadAll(*connection, grant, buffers);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(buffers.HoldPattern());
  EXPECT_EQ(connection->Stats().bytes_read, buffers.bytes());
  // 12 bytes a range and a header for every 512 of them.
  EXPECT_LT(connection->Stats().request_bytes, 100'000u * 13);
}

TEST_F(UcxTransferTest, WritesArriveAndAreReadBack) {
  Serve();
  auto connection = Connect();
  auto writer = authority_.Grant(1, Access::kWrite);
  std::mt19937 random(2);
  std::vector<std::byte> source(4 << 20);
  for (std::byte& b : source) b = static_cast<std::byte>(random());
  // Block b takes source[b * 256 KiB ...], in pieces of odd sizes in a shuffled order, at an odd
  // offset.
  std::vector<WritePiece> pieces;
  const uint32_t share = 256 << 10;
  for (uint32_t block = 0; block < kFrames; ++block) {
    for (uint32_t at = 0; at < share;) {
      const uint32_t length = std::min<uint32_t>(1 + random() % 20'000, share - at);
      pieces.push_back({{block, 333 + at, length}, source.data() + block * share + at});
      at += length;
    }
  }
  std::shuffle(pieces.begin(), pieces.end(), random);
  auto transfer = connection->Write(writer, pieces, In(60'000));
  ASSERT_TRUE(transfer->Wait().ok()) << transfer->Wait();
  // The server asked for the word after it copied; asking here too orders the two threads for
  // ThreadSanitizer, which does not see that the acknowledgement came over a socket.
  (void)authority_.GrantWord(writer->id);
  for (uint32_t block = 0; block < kFrames; ++block) {
    ASSERT_EQ(std::memcmp(authority_.frame(block) + 333, source.data() + block * share, share), 0);
    EXPECT_EQ(authority_.frame(block)[332], Pattern(block, 332));
    EXPECT_EQ(authority_.frame(block)[333 + share], Pattern(block, 333 + share));
  }
  EXPECT_EQ(connection->Stats().bytes_written, source.size());
  EXPECT_EQ(connection->Stats().writes, 1u);
  EXPECT_EQ(server_->Stats().bytes_written, source.size());
  std::vector<std::byte> back(share);
  const ReadPiece piece{{5, 333, share}, back.data()};
  ASSERT_TRUE(
      connection->Read(authority_.Grant(2, Access::kRead), {&piece, 1}, In(60'000))->Wait().ok());
  EXPECT_EQ(std::memcmp(back.data(), source.data() + 5 * share, share), 0);
}

TEST_F(UcxTransferTest, EveryRefusalComesThroughWithItsText) {
  Serve();
  auto connection = Connect();
  auto reader = authority_.Grant(1, Access::kRead);
  auto writer = authority_.Grant(2, Access::kWrite);
  const ErrorCode codes[] = {ErrorCode::kNotFound,     ErrorCode::kStale,
                             ErrorCode::kLeaseExpired, ErrorCode::kPermissionDenied,
                             ErrorCode::kOutOfRange,   ErrorCode::kNotCommitted,
                             ErrorCode::kForeign,      ErrorCode::kWrongState};
  uint64_t refused = 0;
  for (const ErrorCode code : codes) {
    authority_.Refuse(MakeError(code, "because of block 17"));
    Buffers buffers;
    buffers.Add({0, 0, 100'000});
    absl::Status status = ReadAll(*connection, reader, buffers);
    EXPECT_EQ(ErrorCodeOf(status), code);
    EXPECT_EQ(status, MakeError(code, "because of block 17"));
    EXPECT_TRUE(buffers.Untouched());
    const std::byte one{1};
    const WritePiece piece{{0, 0, 1}, &one};
    status = connection->Write(writer, {&piece, 1}, In(60'000))->Wait();
    EXPECT_EQ(status, MakeError(code, "because of block 17"));
    refused += 2;
    EXPECT_EQ(server_->Stats().requests_refused, refused);
  }
  EXPECT_EQ(connection->Stats().stale, 2u);
  EXPECT_EQ(connection->Stats().expired, 2u);
  EXPECT_EQ(connection->Stats().failed, refused - 4);
  authority_.Refuse(std::nullopt);
  EXPECT_EQ(authority_.frame(0)[0], Pattern(0, 0));
  Settle(*connection);
}

TEST_F(UcxTransferTest, BadPiecesEndBeforeAnythingMoves) {
  Serve();
  auto connection = Connect();
  auto grant = authority_.Grant(1, Access::kRead);
  for (const RemoteRange bad : {RemoteRange{kFrames, 0, 1}, RemoteRange{0, 0, 0},
                                RemoteRange{0, kFrameBytes, 1}, RemoteRange{0, 0xffffffff, 2}}) {
    Buffers buffers;
    buffers.Add({0, 0, 100});
    buffers.Add({0, 200, 100});
    auto pieces = buffers.Pieces();
    pieces[1].from = bad;
    const absl::Status status = connection->Read(grant, pieces, In(60'000))->Wait();
    EXPECT_EQ(ErrorCodeOf(status), ErrorCode::kOutOfRange) << status;
    EXPECT_NE(status.message().find("piece 1"), std::string::npos) << status;
    EXPECT_TRUE(buffers.Untouched());
  }
  const std::byte one{1};
  const WritePiece piece{{0, 0, 1}, &one};
  EXPECT_EQ(ErrorCodeOf(connection->Write(grant, {&piece, 1}, In(60'000))->Wait()),
            ErrorCode::kPermissionDenied);
  EXPECT_EQ(server_->Stats().requests, 0u);
  EXPECT_TRUE(connection->Read(grant, {}, In(60'000))->Wait().ok());
}

TEST_F(UcxTransferTest, SixteenThreadsShareAConnection) {
  Serve();
  auto connection = Connect();
  std::vector<std::thread> threads;
  std::atomic<int> bad{0};
  for (uint32_t t = 0; t < 16; ++t) {
    threads.emplace_back([&, t, grant = authority_.Grant(100 + t, Access::kRead)] {
      std::mt19937 random(t);
      for (int round = 0; round < 4; ++round) {
        std::vector<Buffers> buffers(32);
        std::vector<std::unique_ptr<Transfer>> transfers;
        for (Buffers& b : buffers) {
          for (int i = 0; i < 8; ++i) {
            const uint32_t length = 1 + random() % 20'000;
            b.Add({static_cast<uint32_t>(random() % kFrames),
                   static_cast<uint32_t>(random() % (kFrameBytes - length)), length});
          }
          transfers.push_back(connection->Read(grant, b.Pieces(), In(60'000)));
        }
        for (size_t i = 0; i < buffers.size(); ++i) {
          if (!transfers[i]->Wait().ok() || !buffers[i].HoldPattern()) ++bad;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(bad.load(), 0);
  EXPECT_EQ(connection->Stats().reads, 16u * 4 * 32);
  EXPECT_EQ(connection->Stats().pieces, 16u * 4 * 32 * 8);
}

// Small batches that wait together share messages both ways, and still each ends by its own grant,
// into its own buffers.
TEST_F(UcxTransferTest, SmallBatchesThatShareAMessageEndEachForItself) {
  Serve();
  auto connection = Connect();
  auto holder = authority_.Grant(1, Access::kRead);
  Buffers held;
  held.Add({0, 0, 1000});
  PausePoints::Arm("ucx.client.before_copy");  // the progress thread: what follows waits together
  auto first = connection->Read(holder, held.Pieces(), In(60'000));
  ASSERT_TRUE(PausePoints::WaitReached("ucx.client.before_copy"));
  constexpr uint64_t kBatches = 100;
  constexpr uint64_t kRevoked = 7;
  constexpr uint64_t kUnknown = 11;
  constexpr uint64_t kCancelled = 13;
  std::vector<Buffers> buffers(kBatches);
  std::vector<std::shared_ptr<GrantView>> grants;
  std::vector<std::unique_ptr<Transfer>> transfers;
  for (uint64_t i = 0; i < kBatches; ++i) {
    grants.push_back(authority_.Grant(100 + i, Access::kRead));
    if (i == kUnknown) authority_.SetWord(grants[i]->id, 0);
    buffers[i].Add({static_cast<uint32_t>(i % kFrames), static_cast<uint32_t>(i * 8192), 4000});
    buffers[i].Add({static_cast<uint32_t>(i % kFrames), static_cast<uint32_t>(5 * i), 4192});
    transfers.push_back(connection->Read(grants[i], buffers[i].Pieces(), In(60'000)));
  }
  PausePoints::Arm("ucx.server.before_trailer");
  PausePoints::Release("ucx.client.before_copy");
  // The server has authorized the first and copied its bytes; those behind it stand in its queue.
  ASSERT_TRUE(PausePoints::WaitReached("ucx.server.before_trailer"));
  authority_.SetWord(grants[kRevoked]->id, RevokedWord(RevokeReason::kExpired, grants[7]->epoch));
  transfers[kCancelled]->Cancel();
  PausePoints::Release("ucx.server.before_trailer");
  EXPECT_TRUE(first->Wait().ok());
  for (uint64_t i = 0; i < kBatches; ++i) {
    const absl::Status status = transfers[i]->Wait();
    if (i == kRevoked) {
      EXPECT_EQ(ErrorCodeOf(status), ErrorCode::kLeaseExpired) << status;
    } else if (i == kUnknown) {
      EXPECT_EQ(ErrorCodeOf(status), ErrorCode::kStale) << status;
    } else if (i == kCancelled) {
      EXPECT_EQ(ErrorCodeOf(status), ErrorCode::kCancelled) << status;
    } else {
      EXPECT_TRUE(status.ok()) << i << ": " << status;
      EXPECT_TRUE(buffers[i].HoldPattern()) << i;
    }
  }
  Settle(*connection);
  EXPECT_TRUE(buffers[kCancelled].Untouched());
}

}  // namespace
}  // namespace oasiskv::fabric::ucx
