#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/fabric/coalesce.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric {
namespace {

constexpr uint64_t kFrameBytes = 4096;

GrantView MakeGrant(std::vector<FrameAddress> frames) {
  GrantView grant;
  grant.id = GrantId(1);
  grant.epoch = Epoch(1);
  grant.frame_bytes = kFrameBytes;
  grant.frames = std::move(frames);
  return grant;
}

std::byte* Local(std::vector<std::byte>& buffer, size_t at) { return buffer.data() + at; }

template <typename Piece>
std::vector<Run<Piece>> AllRuns(const GrantView& grant, const std::vector<Piece>& pieces,
                                FrameSpan span,
                                uint64_t max_bytes = std::numeric_limits<uint64_t>::max()) {
  RunIterator<Piece> iterator(grant, pieces, span, max_bytes);
  std::vector<Run<Piece>> runs;
  for (Run<Piece> run; iterator.Next(run);) runs.push_back(run);
  return runs;
}

struct BadCase {
  std::string name;
  RemoteRange range;
  std::string says;
};

TEST(CheckPieces, RefusesWhatLiesOutsideAndNamesTheIndex) {
  const GrantView grant = MakeGrant({{ArenaId(0), 0}, {ArenaId(0), kFrameBytes}});
  std::vector<std::byte> buffer(kFrameBytes);
  const std::vector<BadCase> cases = {
      {"block one beyond", {2, 0, 1}, "names block 2; the grant has 2 blocks"},
      {"last block number", {0xffffffff, 0, 1}, "names block 4294967295"},
      {"length 0", {0, 0, 0}, "has length 0"},
      {"length 0 at the end", {0, kFrameBytes, 0}, "has length 0"},
      {"one byte beyond", {1, 1, kFrameBytes}, "end beyond the frame of 4096 bytes"},
      {"from the end", {1, kFrameBytes, 1}, "end beyond the frame of 4096 bytes"},
      {"sum wraps in 32 bits", {0, 0xffffffff, 2}, "end beyond the frame of 4096 bytes"},
      {"both at most", {0, 0xffffffff, 0xffffffff}, "end beyond the frame of 4096 bytes"},
      {"2^31", {0, 0x80000000, 0x80000000}, "end beyond the frame of 4096 bytes"},
  };
  for (const BadCase& bad : cases) {
    std::vector<ReadPiece> reads = {{{0, 0, 16}, buffer.data()},
                                    {{1, kFrameBytes - 16, 16}, buffer.data()},
                                    {bad.range, buffer.data()}};
    absl::Status status = CheckPieces(grant, std::span<const ReadPiece>(reads));
    EXPECT_EQ(ErrorCodeOf(status), ErrorCode::kOutOfRange) << bad.name << ": " << status;
    EXPECT_NE(status.message().find("piece 2"), absl::string_view::npos) << status;
    EXPECT_NE(status.message().find(bad.says), absl::string_view::npos) << status;

    std::vector<WritePiece> writes = {{bad.range, buffer.data()}};
    status = CheckPieces(grant, std::span<const WritePiece>(writes));
    EXPECT_EQ(ErrorCodeOf(status), ErrorCode::kOutOfRange) << bad.name << ": " << status;
    EXPECT_NE(status.message().find("piece 0"), absl::string_view::npos) << status;
  }
}

TEST(CheckPieces, TakesTheLastByteAndRefusesANullBuffer) {
  const GrantView grant = MakeGrant({{ArenaId(0), 0}});
  std::byte byte;
  std::vector<ReadPiece> pieces = {{{0, kFrameBytes - 1, 1}, &byte}, {{0, 0, 1}, &byte}};
  EXPECT_TRUE(CheckPieces(grant, std::span<const ReadPiece>(pieces)).ok());
  EXPECT_TRUE(CheckPieces(grant, std::span<const ReadPiece>()).ok());
  pieces[1].into = nullptr;
  EXPECT_EQ(ErrorCodeOf(CheckPieces(grant, std::span<const ReadPiece>(pieces))),
            ErrorCode::kInvalidArgument);
}

TEST(RunIterator, JoinsOnlyWhatIsContiguousOnBothSides) {
  const GrantView grant = MakeGrant({{ArenaId(0), 0}, {ArenaId(0), 2 * kFrameBytes}});
  std::vector<std::byte> buffer(4 * kFrameBytes);
  const std::vector<ReadPiece> pieces = {
      {{0, 0, 64}, Local(buffer, 0)},     {{0, 64, 64}, Local(buffer, 64)},  // joins
      {{0, 128, 64}, Local(buffer, 200)},                                    // local gap
      {{0, 200, 64}, Local(buffer, 264)},                                    // remote gap
      {{1, 264, 64}, Local(buffer, 328)},                                    // another frame
  };
  auto runs = AllRuns(grant, pieces, FrameSpan::kAcrossFrames);
  ASSERT_EQ(runs.size(), 4u);
  EXPECT_EQ(runs[0].bytes, 128u);
  EXPECT_EQ(runs[0].pieces, 2u);
  EXPECT_EQ(runs[3].first_piece, 4u);
  EXPECT_EQ(runs[3].address, (FrameAddress{ArenaId(0), 2 * kFrameBytes + 264}));
}

TEST(RunIterator, CrossesFramesOnlyWhereAskedAndOnlyInOneArena) {
  const GrantView grant =
      MakeGrant({{ArenaId(0), 0}, {ArenaId(0), kFrameBytes}, {ArenaId(1), 2 * kFrameBytes}});
  std::vector<std::byte> buffer(3 * kFrameBytes);
  std::vector<WritePiece> pieces;
  for (uint32_t block = 0; block < 3; ++block) {
    pieces.push_back({{block, 0, kFrameBytes}, Local(buffer, block * kFrameBytes)});
  }
  auto across = AllRuns(grant, pieces, FrameSpan::kAcrossFrames);
  ASSERT_EQ(across.size(), 2u);
  EXPECT_EQ(across[0].bytes, 2 * kFrameBytes);
  EXPECT_EQ(across[1].address.arena, ArenaId(1));
  EXPECT_EQ(AllRuns(grant, pieces, FrameSpan::kWithinFrame).size(), 3u);
}

// Against a model that lists every 64 bytes, the step of all numbers drawn here: runs move exactly
// the asked bytes, in order, and two neighbours are apart only where the rules demand it.
TEST(RunIterator, EqualsANaiveModelOnRandomBatches) {
  std::mt19937 random(20260811);
  auto draw = [&](uint32_t below) { return static_cast<uint32_t>(random() % below); };
  std::vector<std::byte> buffer(1 << 20);
  for (int round = 0; round < 3000; ++round) {
    std::vector<FrameAddress> frames;
    for (uint32_t i = 0; i < 6; ++i) {
      frames.push_back(
          {ArenaId(draw(2)), draw(6) * kFrameBytes});  // often adjacent, often the same
    }
    const GrantView grant = MakeGrant(frames);
    std::vector<ReadPiece> pieces;
    RemoteRange at{draw(6), 0, 0};
    size_t local = 0;
    for (uint32_t n = draw(40); n > 0; --n) {
      const uint32_t kind = draw(4);
      if (kind == 0) at = {draw(6), 64 * draw(64), 0};  // jump
      if (kind == 1) local += 64 * draw(2);             // perhaps a local gap
      if (at.offset == kFrameBytes) at = {(at.block + 1) % 6, 0, 0};
      at.length = std::min<uint32_t>(64 * (1 + draw(32)), kFrameBytes - at.offset);
      pieces.push_back({at, Local(buffer, local)});
      local += at.length;
      at.offset += at.length;
    }
    ASSERT_TRUE(CheckPieces(grant, std::span<const ReadPiece>(pieces)).ok());
    const FrameSpan span = draw(2) == 0 ? FrameSpan::kWithinFrame : FrameSpan::kAcrossFrames;
    const uint64_t max_bytes = draw(2) == 0 ? std::numeric_limits<uint64_t>::max() : 3000;

    std::map<const std::byte*, FrameAddress> asked, moved;
    for (const ReadPiece& piece : pieces) {
      for (uint32_t i = 0; i < piece.from.length; i += 64) {
        FrameAddress address = frames[piece.from.block];
        address.offset += piece.from.offset + i;
        asked[piece.into + i] = address;
      }
    }
    const auto runs = AllRuns(grant, pieces, span, max_bytes);
    size_t next_piece = 0;
    for (size_t r = 0; r < runs.size(); ++r) {
      const auto& run = runs[r];
      for (uint64_t i = 0; i < run.bytes; i += 64) {
        moved[run.local + i] = {run.address.arena, run.address.offset + i};
      }
      ASSERT_EQ(run.first_piece, next_piece);
      ASSERT_GE(run.pieces, 1u);
      next_piece += run.pieces;
      FrameAddress start = frames[run.block];
      start.offset += run.offset;
      ASSERT_EQ(start, run.address);
      if (span == FrameSpan::kWithinFrame) {
        ASSERT_LE(run.offset + run.bytes, kFrameBytes);
      }
      if (run.pieces > 1) {
        ASSERT_LE(run.bytes, max_bytes);
      }
      if (r == 0) continue;
      const auto& before = runs[r - 1];
      const RemoteRange& head = pieces[run.first_piece].from;
      const bool local_joins = before.local + before.bytes == run.local;
      const bool remote_joins = before.address.arena == run.address.arena &&
                                before.address.offset + before.bytes == run.address.offset;
      const bool same_frame = pieces[run.first_piece - 1].from.block == head.block;
      const bool span_allows = span == FrameSpan::kAcrossFrames || same_frame;
      const bool size_allows = before.bytes + head.length <= max_bytes;
      ASSERT_FALSE(local_joins && remote_joins && span_allows && size_allows)
          << "round " << round << ": runs " << r - 1 << " and " << r << " could be one";
    }
    ASSERT_EQ(next_piece, pieces.size());
    ASSERT_EQ(asked, moved) << "round " << round;
  }
}

}  // namespace
}  // namespace oasiskv::fabric
