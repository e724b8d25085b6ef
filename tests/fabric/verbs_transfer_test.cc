// Reads and writes over real queue pairs, and the rule that no read ever returns another's bytes.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>

#include "tests/fabric/verbs_fixture.h"

namespace oasiskv::fabric::verbs {
namespace {

using ::testing::HasSubstr;

class VerbsTransfer : public VerbsTest {
 protected:
  void SetUp() override {
    OASISKV_NEED_RXE();
    Serve();
  }
  static uint64_t SentOverTheCable() {
    std::ifstream counter("/sys/class/net/rdma1/statistics/tx_bytes");
    uint64_t bytes = 0;
    counter >> bytes;
    return bytes;
  }
};

TEST_F(VerbsTransfer, WhatAWriterWroteAReaderReadsOverTheCable) {
  auto writer = Connect(Access::kWrite);
  auto reader = Connect(Access::kRead);
  EXPECT_EQ(endpoint_->Stats().connections, 2u);
  EXPECT_THAT(reader->Describe(), HasSubstr("::ffff:10.77.0.1 to ::ffff:10.77.0.2"));
  std::vector<std::byte> source(3 * kFrameBytes), target(3 * kFrameBytes);
  std::mt19937 random(1);
  for (std::byte& b : source) b = static_cast<std::byte>(random());
  const auto in = Register(*writer, source);
  const auto out = Register(*reader, target);
  std::vector<WritePiece> writes;
  std::vector<ReadPiece> reads;
  for (uint32_t b = 0; b < 3; ++b) {
    writes.push_back({{b, 0, kFrameBytes}, source.data() + b * kFrameBytes});
    reads.push_back({{b, 0, kFrameBytes}, target.data() + b * kFrameBytes});
  }
  const uint64_t before = SentOverTheCable();
  ASSERT_EQ(writer->Write(pool_.Grant(1, Access::kWrite), writes, Soon())->Wait(),
            absl::OkStatus());
  EXPECT_TRUE(std::equal(source.begin(), source.begin() + kFrameBytes, pool_.frame(0)));
  auto transfer = reader->Read(pool_.Grant(2, Access::kRead), reads, Soon());
  ASSERT_EQ(transfer->Wait(), absl::OkStatus());
  EXPECT_TRUE(transfer->Done());
  EXPECT_EQ(source, target);
  EXPECT_GE(SentOverTheCable() - before, source.size());
  EXPECT_EQ(writer->Stats().bytes_written, source.size());
  EXPECT_EQ(reader->Stats().bytes_read, target.size());
  EXPECT_EQ(reader->Stats().grant_checks, 1u);
}

TEST_F(VerbsTransfer, AHundredThousandScatteredEntriesArriveRight) {
  constexpr uint32_t kEntries = 100'000, kBytes = 256;
  auto reader = Connect(Access::kRead);
  auto grant = pool_.Grant(1, Access::kRead);
  std::vector<std::byte> target(kEntries * kBytes);
  const auto registration = Register(*reader, target);
  std::vector<ReadPiece> pieces;
  std::mt19937 random(7);
  for (uint32_t i = 0; i < kEntries; ++i) {
    const uint32_t offset = static_cast<uint32_t>(random() % (kFrameBytes / kBytes)) * kBytes;
    pieces.push_back(
        {{static_cast<uint32_t>(random() % kFrames), offset, kBytes}, target.data() + i * kBytes});
  }
  ASSERT_EQ(reader->Read(grant, pieces, Soon())->Wait(), absl::OkStatus());
  for (const ReadPiece& piece : pieces) ASSERT_TRUE(TestPool::Holds(piece.into, piece.from));
  EXPECT_GT(reader->Stats().requests, kEntries * 9 / 10);
  EXPECT_EQ(reader->Stats().bytes_read, target.size());
}

TEST_F(VerbsTransfer, NeighboursAreOneRequestAcrossFrames) {
  auto reader = Connect(Access::kRead);
  std::vector<std::byte> target(64 * 1024);
  std::vector<ReadPiece> pieces;
  for (uint32_t i = 0; i < 8; ++i)
    pieces.push_back({{0, i * 1024, 1024}, target.data() + i * 1024});
  // Blocks 0 and 2 lie side by side in arena 0.
  pieces.push_back({{0, kFrameBytes - 512, 512}, target.data() + 10'000});
  pieces.push_back({{2, 0, 512}, target.data() + 10'512});
  ASSERT_EQ(reader->Read(pool_.Grant(1, Access::kRead), pieces, Soon())->Wait(), absl::OkStatus());
  for (const ReadPiece& piece : pieces) EXPECT_TRUE(TestPool::Holds(piece.into, piece.from));
  EXPECT_EQ(reader->Stats().pieces, 10u);
  EXPECT_EQ(reader->Stats().requests, 2u);
  EXPECT_EQ(reader->Read(pool_.Grant(1, Access::kRead), {}, Soon())->Wait(), absl::OkStatus());
}

TEST_F(VerbsTransfer, WrongBatchesAreRefusedBeforeAnythingMoves) {
  auto reader = Connect(Access::kRead);
  auto grant = pool_.Grant(1, Access::kRead);
  std::vector<std::byte> target(1024, std::byte{0x11});
  auto read = [&](RemoteRange range, const std::shared_ptr<const GrantView>& under) {
    const std::vector<ReadPiece> pieces = {{range, target.data()}};
    return ErrorCodeOf(reader->Read(under, pieces, Soon())->Wait());
  };
  EXPECT_EQ(read({kFrames, 0, 8}, grant), ErrorCode::kOutOfRange);
  EXPECT_EQ(read({0, kFrameBytes, 8}, grant), ErrorCode::kOutOfRange);
  EXPECT_EQ(read({0, 0xffff'fff8, 16}, grant), ErrorCode::kOutOfRange);
  EXPECT_EQ(read({0, 0, 0}, grant), ErrorCode::kOutOfRange);
  EXPECT_EQ(read({0, 0, 8}, pool_.Grant(2, Access::kWrite)), ErrorCode::kPermissionDenied);
  auto beyond = pool_.Grant(3, Access::kRead);
  beyond->frames[0].offset = kArenaBytes - kFrameBytes + 8;
  EXPECT_EQ(read({0, 0, 8}, beyond), ErrorCode::kOutOfRange);
  beyond->frames[0] = {ArenaId(kArenas), 0};
  EXPECT_EQ(read({0, 0, 8}, beyond), ErrorCode::kOutOfRange);
  beyond = pool_.Grant(4, Access::kRead);
  beyond->word_slot = WordSlot(kWords);
  EXPECT_EQ(read({0, 0, 8}, beyond), ErrorCode::kOutOfRange);
  EXPECT_EQ(target, std::vector<std::byte>(1024, std::byte{0x11}));
  EXPECT_EQ(reader->Stats().requests, 0u);
  EXPECT_EQ(reader->Health(), absl::OkStatus());
}

// A grant is revoked when all its data has arrived and its word has not been read yet. Fails when
// the word is read before or along with the data.
TEST_F(VerbsTransfer, AGrantRevokedBetweenDataAndWordIsStale) {
  auto reader = Connect(Access::kRead);
  auto grant = pool_.Grant(1, Access::kRead);
  std::vector<std::byte> target(kFrameBytes);
  // Not registered: bytes are in it once their completion was seen, not just once they are on this
  // side.
  const std::vector<ReadPiece> pieces = {{{0, 0, kFrameBytes}, target.data()}};
  for (const auto& [reason, expected] :
       {std::pair(RevokeReason::kReleased, ErrorCode::kStale),
        std::pair(RevokeReason::kExpired, ErrorCode::kLeaseExpired)}) {
    pool_.SetWord(grant->word_slot, grant->epoch.value());
    PausePoints::Arm("verbs.before_grant_word");
    auto transfer = reader->Read(grant, pieces, Soon());
    ASSERT_TRUE(PausePoints::WaitReached("verbs.before_grant_word"));
    EXPECT_TRUE(TestPool::Holds(target.data(), pieces[0].from));
    pool_.SetWord(grant->word_slot, RevokedWord(reason, grant->epoch));
    PausePoints::Release("verbs.before_grant_word");
    EXPECT_EQ(ErrorCodeOf(transfer->Wait()), expected);
    EXPECT_EQ(ErrorCodeOf(reader->Read(grant, pieces, Soon())->Wait()), expected);
  }
  EXPECT_EQ(reader->Stats().stale, 2u);
  EXPECT_EQ(reader->Stats().expired, 2u);
}

// The word is not asked for while data is on its way.
TEST_F(VerbsTransfer, TheGrantWordWaitsForTheData) {
  auto reader = Connect(Access::kRead);
  auto grant = pool_.Grant(1, Access::kRead);
  std::vector<std::byte> target(kFrameBytes);
  const std::vector<ReadPiece> pieces = {{{0, 0, kFrameBytes}, target.data()}};
  PausePoints::Arm("verbs.before_grant_word");
  std::unique_ptr<Transfer> transfer;
  {
    const Silence silence;
    transfer = reader->Read(grant, pieces, Soon());
    EXPECT_FALSE(PausePoints::WaitReached("verbs.before_grant_word", Millis(100)));
  }
  EXPECT_TRUE(PausePoints::WaitReached("verbs.before_grant_word"));  // sent again, it arrives
  EXPECT_TRUE(TestPool::Holds(target.data(), pieces[0].from));
  PausePoints::Release("verbs.before_grant_word");
  EXPECT_EQ(transfer->Wait(), absl::OkStatus());
}

TEST_F(VerbsTransfer, AWriteUnderARevokedGrantIsNoSuccess) {
  auto writer = Connect(Access::kWrite);
  std::vector<std::byte> source(64);
  auto lost = pool_.Grant(2, Access::kWrite);
  pool_.SetWord(lost->word_slot, RevokedWord(RevokeReason::kAborted, lost->epoch));
  const std::vector<WritePiece> writes = {{{1, 0, 64}, source.data()}};
  EXPECT_EQ(ErrorCodeOf(writer->Write(lost, writes, Soon())->Wait()), ErrorCode::kStale);
}

// Fails when Cancel returns while reads are on their way to the buffer.
TEST_F(VerbsTransfer, ACancelledBatchTouchesItsBufferNoMore) {
  auto reader = Connect(Access::kRead);
  auto grant = pool_.Grant(1, Access::kRead);
  constexpr uint32_t kPieces = 64, kBytes = 4096;
  std::vector<std::byte> target(kPieces * kBytes);
  const auto registration = Register(*reader, target);
  std::mt19937 random(3);
  auto pieces_of = [&](uint32_t first_block) {
    std::vector<ReadPiece> pieces;
    for (uint32_t i = 0; i < kPieces; ++i) {
      pieces.push_back(
          {{first_block + i % 8, (i * 7 % 32) * kBytes, kBytes}, target.data() + i * kBytes});
    }
    return pieces;
  };
  for (int round = 0; round < 200; ++round) {
    auto first = reader->Read(grant, pieces_of(0), Soon());
    for (int spins = static_cast<int>(random() % 3000); spins > 0; --spins) {
      if (first->Done()) break;
    }
    first->Cancel();
    const ErrorCode code = ErrorCodeOf(first->Wait());
    ASSERT_TRUE(code == ErrorCode::kCancelled || code == ErrorCode::kUnspecified) << first->Wait();
    std::fill(target.begin(), target.end(), std::byte{0x5a});
    if (round % 2 == 0) {
      const auto second = pieces_of(64);
      ASSERT_EQ(reader->Read(grant, second, Soon())->Wait(), absl::OkStatus());
      for (const ReadPiece& piece : second) ASSERT_TRUE(TestPool::Holds(piece.into, piece.from));
    } else {
      std::byte other[64];
      const std::vector<ReadPiece> elsewhere = {{{0, 0, 64}, other}};
      ASSERT_EQ(reader->Read(grant, elsewhere, Soon())->Wait(), absl::OkStatus());
      ASSERT_EQ(std::count(target.begin(), target.end(), std::byte{0x5a}),
                static_cast<std::ptrdiff_t>(target.size()));
    }
  }
  EXPECT_GT(reader->Stats().cancelled, 0u);
  EXPECT_EQ(reader->Health(), absl::OkStatus());
}

TEST_F(VerbsTransfer, WhatAStepWaitsForOvertakesTheBackground) {
  VerbsConnectOptions options = Options(Access::kRead);
  options.window_bytes = 1 << 20;
  auto reader = Connect(options, control_);
  auto grant = pool_.Grant(1, Access::kRead);
  std::vector<std::byte> large(24 << 20), small(4096);
  const auto registration = Register(*reader, large);
  std::vector<ReadPiece> pieces;
  for (uint32_t b = 0; b < 96; ++b) {
    pieces.push_back({{b, 0, kFrameBytes}, large.data() + b * kFrameBytes});
  }
  auto background = reader->ReadWithPriority(grant, pieces, Soon(), Priority::kBackground);
  const std::vector<ReadPiece> urgent = {{{100, 0, 4096}, small.data()}};
  EXPECT_EQ(reader->Read(grant, urgent, Soon())->Wait(), absl::OkStatus());
  EXPECT_FALSE(background->Done());
  EXPECT_TRUE(TestPool::Holds(small.data(), urgent[0].from));
  EXPECT_EQ(background->Wait(), absl::OkStatus());
  for (const ReadPiece& piece : pieces) ASSERT_TRUE(TestPool::Holds(piece.into, piece.from));
}

TEST_F(VerbsTransfer, TheFenceWaitsForWritesAndIsToldToTheDaemon) {
  auto writer = Connect(Access::kWrite);
  auto grant = pool_.Grant(8, Access::kWrite);
  std::vector<std::byte> source(8 * kFrameBytes, std::byte{0x77});
  const auto registration = Register(*writer, source);
  std::vector<WritePiece> pieces;
  for (uint32_t b = 0; b < 8; ++b) pieces.push_back({{b, 0, kFrameBytes}, source.data()});
  auto transfer = writer->Write(grant, pieces, Soon());
  writer->FenceWriter(grant->id);
  EXPECT_TRUE(transfer->Done() || writer->Stats().bytes_written == source.size());
  EXPECT_EQ(transfer->Wait(), absl::OkStatus());
  ASSERT_EQ(authority_.fenced().size(), 1u);
  EXPECT_EQ(authority_.fenced()[0], std::make_pair(writer->connection_id(), grant->id));
  EXPECT_EQ(ErrorCodeOf(writer->Write(grant, pieces, Soon())->Wait()), ErrorCode::kStale);
  auto other = pool_.Grant(9, Access::kWrite);
  EXPECT_EQ(writer->Write(other, pieces, Soon())->Wait(), absl::OkStatus());
}

// The daemon revoked a writer's grant and cannot wait for its fence.
TEST_F(VerbsTransfer, AClosedWriterReachesTheMemoryNoMore) {
  auto writer = Connect(Access::kWrite);
  auto grant = pool_.Grant(1, Access::kWrite);
  std::vector<std::byte> source(32 * kFrameBytes, std::byte{0x77});
  const auto registration = Register(*writer, source);
  std::vector<WritePiece> pieces;
  for (uint32_t b = 0; b < 32; ++b) pieces.push_back({{b, 0, kFrameBytes}, source.data()});
  std::unique_ptr<Transfer> transfer;
  {
    const Silence silence;  // so that it is not over before the daemon acts
    transfer = writer->Write(grant, pieces, Soon());
    EXPECT_TRUE(endpoint_->Close(writer->connection_id()));
  }
  ASSERT_EQ(authority_.closed().size(), 1u);
  EXPECT_EQ(authority_.closed()[0], writer->connection_id());
  for (uint32_t b = 0; b < 32; ++b) std::memset(pool_.frame(b), 0x22, kFrameBytes);
  EXPECT_EQ(ErrorCodeOf(transfer->Wait()), ErrorCode::kPeerLost);
  for (uint32_t b = 0; b < 32; ++b) {
    ASSERT_EQ(std::count(pool_.frame(b), pool_.frame(b) + kFrameBytes, std::byte{0x22}),
              static_cast<std::ptrdiff_t>(kFrameBytes));
  }
  EXPECT_EQ(ErrorCodeOf(writer->Health()), ErrorCode::kPeerLost);
  writer->FenceWriter(grant->id);  // no promise can be made any more
  EXPECT_TRUE(authority_.fenced().empty());
  EXPECT_FALSE(endpoint_->Close(writer->connection_id()));
}

TEST_F(VerbsTransfer, EightThreadsShareTwoConnections) {
  constexpr int kThreads = 8, kBatches = 25;
  auto reader = Connect(Access::kRead);
  auto writer = Connect(Access::kWrite);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const bool writes = t % 4 == 3;
      auto grant = pool_.Grant(20 + t, writes ? Access::kWrite : Access::kRead);
      Connection& connection = writes ? *writer : *reader;
      std::mt19937 random(t);
      std::vector<std::byte> buffer(16 * 4096, static_cast<std::byte>(t));
      std::unique_ptr<BufferRegistration> registration;
      if (t % 2 == 0) registration = Register(connection, buffer);
      for (int b = 0; b < kBatches; ++b) {
        if (writes) {
          const std::vector<WritePiece> pieces = {
              {{static_cast<uint32_t>(100 + t), 0, static_cast<uint32_t>(buffer.size())},
               buffer.data()}};
          if (!connection.Write(grant, pieces, Soon())->Wait().ok()) ++wrong;
          continue;
        }
        std::vector<ReadPiece> pieces;
        for (uint32_t i = 0; i < 16; ++i) {
          pieces.push_back({{static_cast<uint32_t>(random() % 64), 4096 * (i % 16), 4096},
                            buffer.data() + i * 4096});
        }
        const auto priority = static_cast<Priority>(random() % 3);
        auto transfer = connection.ReadWithPriority(grant, pieces, Soon(), priority);
        if (random() % 8 == 0) {
          transfer->Cancel();
          continue;
        }
        if (!transfer->Wait().ok()) ++wrong;
        for (const ReadPiece& piece : pieces) {
          if (!TestPool::Holds(piece.into, piece.from)) ++wrong;
        }
      }
      if (writes) connection.FenceWriter(grant->id);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(pool_.frame(103)[16 * 4096 - 1], std::byte{3});
  EXPECT_EQ(reader->Stats().reads, 6u * kBatches);
  EXPECT_EQ(writer->Stats().writes, 2u * kBatches);
  EXPECT_EQ(authority_.fenced().size(), 2u);
}

TEST_F(VerbsTransfer, AConnectionEndsWithItsBatches) {
  auto reader = Connect(Access::kRead);
  std::vector<std::byte> target(16 * kFrameBytes);
  auto registration = Register(*reader, target);
  std::vector<ReadPiece> pieces;
  for (uint32_t b = 0; b < 16; ++b) {
    pieces.push_back({{b, 0, kFrameBytes}, target.data() + b * kFrameBytes});
  }
  std::unique_ptr<Transfer> transfer;
  {
    const Silence silence;
    transfer = reader->Read(pool_.Grant(1, Access::kRead), pieces, Soon());
    reader.reset();
  }
  EXPECT_EQ(ErrorCodeOf(transfer->Wait()), ErrorCode::kCancelled);
  EXPECT_EQ(endpoint_->Stats().connections, 0u);
  EXPECT_EQ(authority_.closed().size(), 1u);
  registration.reset();
}

}  // namespace
}  // namespace oasiskv::fabric::verbs
