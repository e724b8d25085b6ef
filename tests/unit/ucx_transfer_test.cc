// Batches over the ucx fabric: bytes, refusals, revocation, cancellation, deadlines, many threads.
#include <sys/mman.h>

#include <algorithm>
#include <random>
#include <thread>

#include "tests/unit/ucx_fixture.h"

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

// Rule 2 of the design: what was read before the grant was revoked, but is looked at after, does
// not count.
TEST_F(UcxTransferTest, ARevocationBeforeTheTrailerSpoilsTheBatch) {
  Serve();
  auto connection = Connect();
  struct Case {
    Access access;
    uint32_t bytes;  // small: data and trailer in one message
    RevokeReason reason;
    ErrorCode code;
  };
  uint64_t id = 10;
  for (const Case& c :
       {Case{Access::kRead, 1000, RevokeReason::kReleased, ErrorCode::kStale},
        Case{Access::kRead, 500'000, RevokeReason::kAborted, ErrorCode::kStale},
        Case{Access::kRead, 500'000, RevokeReason::kExpired, ErrorCode::kLeaseExpired},
        Case{Access::kWrite, 1000, RevokeReason::kReleased, ErrorCode::kStale},
        Case{Access::kWrite, 1000, RevokeReason::kExpired, ErrorCode::kLeaseExpired}}) {
    auto grant = authority_.Grant(++id, c.access);
    std::vector<std::byte> memory(c.bytes);
    PausePoints::Arm("ucx.server.before_trailer");
    const ReadPiece read{{2, 0, c.bytes}, memory.data()};
    const WritePiece write{{2, 0, c.bytes}, memory.data()};
    auto transfer = c.access == Access::kRead ? connection->Read(grant, {&read, 1}, In(60'000))
                                              : connection->Write(grant, {&write, 1}, In(60'000));
    ASSERT_TRUE(PausePoints::WaitReached("ucx.server.before_trailer"));
    EXPECT_FALSE(transfer->Done());
    authority_.SetWord(grant->id, RevokedWord(c.reason, grant->epoch));
    PausePoints::Release("ucx.server.before_trailer");
    EXPECT_EQ(ErrorCodeOf(transfer->Wait()), c.code) << transfer->Wait();
  }
  EXPECT_EQ(connection->Stats().stale, 3u);
  EXPECT_EQ(connection->Stats().expired, 2u);
}

TEST_F(UcxTransferTest, DataThatComesAfterACancelTouchesNothing) {
  Serve();
  auto connection = Connect();
  auto grant = authority_.Grant(1, Access::kRead);
  for (const uint32_t bytes : {1000u, 400'000u}) {
    Buffers buffers;
    buffers.Add({0, 0, bytes});
    PausePoints::Arm("ucx.client.before_copy");
    auto transfer = connection->Read(grant, buffers.Pieces(), In(60'000));
    ASSERT_TRUE(PausePoints::WaitReached("ucx.client.before_copy"));
    transfer->Cancel();
    EXPECT_EQ(ErrorCodeOf(transfer->Wait()), ErrorCode::kCancelled);
    PausePoints::Release("ucx.client.before_copy");
    Settle(*connection);
    EXPECT_TRUE(buffers.Untouched());
  }
  EXPECT_EQ(connection->Stats().cancelled, 2u);
}

TEST_F(UcxTransferTest, DataThatComesAfterTheDeadlineTouchesNothing) {
  Serve();
  auto connection = Connect();
  auto grant = authority_.Grant(1, Access::kRead);
  Buffers buffers;
  buffers.Add({0, 0, 400'000});
  PausePoints::Arm("ucx.server.before_reply");
  auto transfer = connection->Read(grant, buffers.Pieces(), In(100));
  ASSERT_TRUE(PausePoints::WaitReached("ucx.server.before_reply"));
  EXPECT_EQ(authority_.pins(), 1) << "an authorized read must hold its pin";
  // By the progress thread alone, for an owner who only polls.
  EXPECT_TRUE(Eventually([&] { return transfer->Done(); }));
  EXPECT_EQ(ErrorCodeOf(transfer->Wait()), ErrorCode::kDeadlineExceeded);
  PausePoints::Release("ucx.server.before_reply");
  Settle(*connection);
  EXPECT_TRUE(buffers.Untouched());
  EXPECT_EQ(connection->Stats().deadline, 1u);
}

// A fetch is cancelled at once and its destination given to another, which must end with its own
// bytes and no others.
TEST_F(UcxTransferTest, ABufferIsReusedRightAfterACancel) {
  Serve();
  auto connection = Connect();
  auto grant = authority_.Grant(1, Access::kRead);
  constexpr uint32_t kBytes = 300'000;
  std::vector<std::byte> memory(kBytes);
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    const uint32_t first = random() % kFrames;
    const uint32_t second = (first + 1) % kFrames;
    const ReadPiece lost{{first, 0, kBytes}, memory.data()};
    auto cancelled = connection->Read(grant, {&lost, 1}, In(60'000));
    for (uint32_t spin = random() % 20'000; spin > 0 && !cancelled->Done(); --spin) {
    }
    cancelled->Cancel();
    const ReadPiece wanted{{second, 77, kBytes}, memory.data()};
    const absl::Status status = connection->Read(grant, {&wanted, 1}, In(60'000))->Wait();
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_EQ(std::memcmp(memory.data(), authority_.frame(second) + 77, kBytes), 0) << round;
  }
}

// The kernel itself tells of a touch: the buffer is unmapped when Cancel has returned.
TEST_F(UcxTransferTest, ABufferIsUnmappedRightAfterACancel) {
  Serve();
  auto connection = Connect();
  auto reader = authority_.Grant(1, Access::kRead);
  auto writer = authority_.Grant(2, Access::kWrite);
  constexpr size_t kBytes = 8 << 20;
  for (int round = 0; round < 10; ++round) {
    void* memory =
        ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    auto* bytes = static_cast<std::byte*>(memory);
    std::vector<ReadPiece> reads;
    std::vector<WritePiece> writes;
    for (uint32_t i = 0; i < kBytes / kFrameBytes; ++i) {
      reads.push_back({{i, 0, kFrameBytes}, bytes + i * kFrameBytes});
      writes.push_back({{i, 0, kFrameBytes}, bytes + i * kFrameBytes});
    }
    auto transfer = round % 2 == 0 ? connection->Read(reader, reads, In(60'000))
                                   : connection->Write(writer, writes, In(60'000));
    transfer->Cancel();
    ::munmap(memory, kBytes);
  }
  Buffers buffers;
  buffers.Add({15, 0, 100});
  ASSERT_TRUE(ReadAll(*connection, reader, buffers).ok());
  EXPECT_TRUE(buffers.HoldPattern());
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

TEST_F(UcxTransferTest, AFencedWriterWritesNoMore) {
  Serve();
  auto connection = Connect();
  auto grant = authority_.Grant(1, Access::kWrite);
  std::vector<std::byte> memory(1000, std::byte{9});
  const WritePiece piece{{1, 0, 1000}, memory.data()};
  PausePoints::Arm("ucx.server.before_trailer");
  auto running = connection->Write(grant, {&piece, 1}, In(60'000));
  ASSERT_TRUE(PausePoints::WaitReached("ucx.server.before_trailer"));
  std::atomic<bool> fenced{false};
  std::thread fencer([&] {
    connection->FenceWriter(grant->id);
    fenced.store(true);
  });
  // New writes are refused from the moment the fence is asked for, while the running one is still
  // waited for.
  EXPECT_TRUE(Eventually([&] {
    return ErrorCodeOf(connection->Write(grant, {&piece, 1}, In(1))->Wait()) == ErrorCode::kStale;
  }));
  EXPECT_FALSE(fenced.load());
  PausePoints::Release("ucx.server.before_trailer");
  fencer.join();
  EXPECT_TRUE(running->Done());
  EXPECT_TRUE(running->Wait().ok()) << running->Wait();
  EXPECT_TRUE(
      connection->Write(authority_.Grant(2, Access::kWrite), {&piece, 1}, In(60'000))->Wait().ok());
}

// What a connection remembers of fences is bounded, however many writers come and go: beyond it the
// daemon alone refuses.
TEST_F(UcxTransferTest, TheOldestFencesAreForgotten) {
  Serve();
  auto connection = Connect();
  constexpr uint64_t kFences = 65'537;
  for (uint64_t id = 1; id <= kFences; ++id) connection->FenceWriter(GrantId(id));
  std::vector<std::byte> memory(1000, std::byte{9});
  const WritePiece piece{{1, 0, 1000}, memory.data()};
  auto write = [&](uint64_t id) {
    return connection->Write(authority_.Grant(id, Access::kWrite), {&piece, 1}, In(60'000))->Wait();
  };
  EXPECT_TRUE(write(1).ok());
  EXPECT_EQ(ErrorCodeOf(write(2)), ErrorCode::kStale);
  EXPECT_EQ(ErrorCodeOf(write(kFences)), ErrorCode::kStale);
}

// Batches that wait for room in the window of a daemon that answers nothing are let go when they
// end.
TEST_F(UcxTransferTest, BatchesThatEndedWithoutATurnAreForgotten) {
  Serve();
  auto connection = Connect(/*window_bytes=*/64 << 10);
  auto first = authority_.Grant(1, Access::kRead);
  auto waiting = authority_.Grant(2, Access::kRead);
  Buffers window;
  window.Add({0, 0, 64 << 10});
  PausePoints::Arm("ucx.server.before_reply");
  auto transfer = connection->Read(first, window.Pieces(), In(60'000));
  ASSERT_TRUE(PausePoints::WaitReached("ucx.server.before_reply"));
  for (int i = 0; i < 20; ++i) {
    Buffers buffers;
    buffers.Add({1, 0, 1000});
    EXPECT_EQ(ErrorCodeOf(connection->Read(waiting, buffers.Pieces(), In(5))->Wait()),
              ErrorCode::kDeadlineExceeded);
  }
  EXPECT_TRUE(Eventually([&] { return waiting.use_count() == 1; })) << waiting.use_count();
  PausePoints::Release("ucx.server.before_reply");
  EXPECT_TRUE(transfer->Wait().ok()) << transfer->Wait();
}

TEST_F(UcxTransferTest, TransfersOutliveTheirConnection) {
  Serve();
  auto connection = Connect();
  auto grant = authority_.Grant(1, Access::kRead);
  Buffers buffers;
  buffers.Add({0, 0, kFrameBytes});
  PausePoints::Arm("ucx.server.before_reply");
  auto transfer = connection->Read(grant, buffers.Pieces(), In(60'000));
  ASSERT_TRUE(PausePoints::WaitReached("ucx.server.before_reply"));
  connection.reset();
  EXPECT_EQ(ErrorCodeOf(transfer->Wait()), ErrorCode::kCancelled);
  PausePoints::Release("ucx.server.before_reply");
  EXPECT_TRUE(Eventually([&] { return server_->Stats().connections == 0; }));
  EXPECT_TRUE(buffers.Untouched());
}

}  // namespace
}  // namespace oasiskv::fabric::ucx
