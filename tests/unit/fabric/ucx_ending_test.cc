// Batches over the ucx fabric that do not succeed: revocation, cancellation, deadlines, fences; and
// that nothing of them is left.
#include <sys/mman.h>

#include <random>
#include <thread>

#include "tests/unit/fabric/ucx_fixture.h"

namespace oasiskv::fabric::ucx {
namespace {

using UcxEndingTest = UcxTest;

// Bytes that were read before the grant was revoked do not count if the word is checked after it.
TEST_F(UcxEndingTest, ARevocationBeforeTheTrailerSpoilsTheBatch) {
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

TEST_F(UcxEndingTest, DataThatComesAfterACancelTouchesNothing) {
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

TEST_F(UcxEndingTest, DataThatComesAfterTheDeadlineTouchesNothing) {
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
TEST_F(UcxEndingTest, ABufferIsReusedRightAfterACancel) {
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

// The buffer is unmapped when Cancel has returned, so that the kernel reports any access.
TEST_F(UcxEndingTest, ABufferIsUnmappedRightAfterACancel) {
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

TEST_F(UcxEndingTest, AFencedWriterWritesNoMore) {
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
TEST_F(UcxEndingTest, TheOldestFencesAreForgotten) {
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
TEST_F(UcxEndingTest, BatchesThatEndedWithoutATurnAreForgotten) {
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

TEST_F(UcxEndingTest, TransfersOutliveTheirConnection) {
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
