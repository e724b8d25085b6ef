// What each data request is refused for.
#include <algorithm>
#include <set>

#include "server/lease/range_check.h"
#include "tests/unit/server/core_lease_fixture.h"

namespace oasiskv::server {
namespace {

using fabric::Access;
using ::testing::HasSubstr;

using Authorize = LeaseFixture;

TEST_F(Authorize, RangesOutsideTheGrantAreRefusedNamingTheIndex) {
  MustSeal("a", 2);
  const AttachResult reader = MustAttach("a");
  const uint32_t frame = SmallGeometry().frame_bytes();
  EXPECT_TRUE(Read(reader.grant, {1, 0, frame}).ok());
  EXPECT_TRUE(Read(reader.grant, {0, frame - 1, 1}).ok());
  for (const fabric::RemoteRange& r : {fabric::RemoteRange{2, 0, 1},
                                       {UINT32_MAX, 0, 1},
                                       {uint32_t{1} << 31, 0, 1},
                                       {0, 0, 0},
                                       {0, 0, frame + 1},
                                       {0, frame, 1},
                                       {0, frame - 1, 2},
                                       {0, UINT32_MAX, 2},
                                       {0, 16, UINT32_MAX},
                                       {0, UINT32_MAX, UINT32_MAX}}) {
    const std::vector<fabric::RemoteRange> ranges = {{0, 0, 16}, {1, 0, 16}, r};
    const absl::Status status =
        core_->Authorize(reader.grant.id, reader.grant.epoch, Access::kRead, ranges).status();
    EXPECT_CODE(ErrorCode::kOutOfRange, status) << r.block << " " << r.offset << " " << r.length;
    EXPECT_THAT(std::string(status.message()), HasSubstr("range 2:"));
  }
  EXPECT_CODE(ErrorCode::kPermissionDenied, Write(reader.grant, {0, 0, 16}));
  const OpenResult writer = MustOpen("w", 1);
  EXPECT_CODE(ErrorCode::kPermissionDenied, Read(writer.grant, {0, 0, 16}));
}

TEST_F(Authorize, TheMemoryIsThatOfTheFrame) {
  const OpenResult writer = MustOpen("a", 3);
  const std::vector<fabric::RemoteRange> ranges = {{2, 16, 32}, {0, 0, 8}};
  const absl::StatusOr<fabric::PinnedRanges> pinned =
      core_->Authorize(writer.grant.id, writer.grant.epoch, Access::kWrite, ranges);
  ASSERT_TRUE(pinned.ok());
  ASSERT_EQ(pinned->memory.size(), 2u);
  EXPECT_EQ(pinned->memory[0].data(), Memory(writer.grant.frames[2]) + 16);
  EXPECT_EQ(pinned->memory[0].size(), 32u);
  EXPECT_EQ(pinned->memory[1].data(), Memory(writer.grant.frames[0]));
}

TEST_F(Authorize, OnlyCommittedLayersAreReadAndOnlyUncommittedOnesWritten) {
  const Geometry g = SmallGeometry();
  const OpenResult opened = MustOpen("a", 2);
  const AttachResult reader = MustAttach("a");
  const LayerBlocks layer1{1, 1, 0, 1};
  WriteAll(opened.grant, 1);
  ASSERT_TRUE(core_->Commit(Key(opened.grant), std::span(&layer1, 1), {}).ok());
  const uint32_t entries1 = g.entry_offset(LayerIndex(1), HeadIndex(0));
  const uint32_t summaries1 = g.summary_offset(LayerIndex(1), HeadIndex(0));
  EXPECT_TRUE(Read(reader.grant, {0, entries1, g.layer_entries_bytes()}).ok());
  EXPECT_TRUE(Read(reader.grant, {0, summaries1, g.layer_summaries_bytes()}).ok());
  EXPECT_CODE(ErrorCode::kNotCommitted, Read(reader.grant, {0, entries1 - 1, 2}));
  EXPECT_CODE(ErrorCode::kNotCommitted, Read(reader.grant, {0, summaries1 - 1, 2}));
  EXPECT_CODE(ErrorCode::kNotCommitted,
              Read(reader.grant, {0, entries1, g.layer_entries_bytes() + 1}))
      << "layer 0's first summary follows layer 1's entries";
  EXPECT_CODE(ErrorCode::kNotCommitted, Read(reader.grant, {1, entries1, 16}));
  EXPECT_CODE(ErrorCode::kNotCommitted, Read(reader.grant, {0, 0, g.frame_bytes()}));
  EXPECT_CODE(ErrorCode::kWrongState, Write(opened.grant, {0, entries1, 16}));
  EXPECT_CODE(ErrorCode::kWrongState, Write(opened.grant, {0, entries1 - 1, 2}));
  EXPECT_CODE(ErrorCode::kWrongState, Write(opened.grant, {0, summaries1, 16}));
  EXPECT_TRUE(Write(opened.grant, {0, 0, g.layer_entries_bytes()}).ok());
  EXPECT_TRUE(Write(opened.grant, {1, 0, g.frame_bytes()}).ok());
}

TEST_F(Authorize, HeadsOutsideTheAttachedRangeAreForeign) {
  OpenSpec spec = Spec("a", 1);
  spec.geometry.kv_heads = spec.geometry.total_kv_heads = 4;
  const Geometry& g = spec.geometry;
  const OpenResult opened = MustOpen(spec);
  WriteAll(opened.grant, 1, g);
  ASSERT_TRUE(CommitAll(opened, 1).ok());
  ASSERT_TRUE(Seal(opened, 1).ok());
  AttachSpec read = ReadSpec("a");
  read.geometry = g;
  read.first_head = 1;
  read.head_count = 2;
  const AttachResult reader = *core_->Attach(read);
  auto offset = [&](uint32_t layer, uint32_t head) {
    return g.entry_offset(LayerIndex(layer), HeadIndex(head));
  };
  auto summary = [&](uint32_t layer, uint32_t head) {
    return g.summary_offset(LayerIndex(layer), HeadIndex(head));
  };
  const uint32_t entry = g.entry_bytes();
  for (uint32_t layer : {0u, 1u}) {
    EXPECT_TRUE(Read(reader.grant, {0, offset(layer, 1), 2 * entry}).ok());
    EXPECT_TRUE(Read(reader.grant, {0, offset(layer, 2) + 8, 8}).ok());
    EXPECT_TRUE(Read(reader.grant, {0, summary(layer, 1), 2 * g.summary_bytes()}).ok());
    EXPECT_CODE(ErrorCode::kForeign, Read(reader.grant, {0, offset(layer, 0), entry}));
    EXPECT_CODE(ErrorCode::kForeign, Read(reader.grant, {0, offset(layer, 3), 1}));
    EXPECT_CODE(ErrorCode::kForeign, Read(reader.grant, {0, offset(layer, 1) - 1, 2}));
    EXPECT_CODE(ErrorCode::kForeign, Read(reader.grant, {0, offset(layer, 1), 2 * entry + 1}));
    EXPECT_CODE(ErrorCode::kForeign, Read(reader.grant, {0, summary(layer, 0), 1}));
    EXPECT_CODE(ErrorCode::kForeign,
                Read(reader.grant, {0, summary(layer, 2), g.summary_bytes() + 1}));
  }
  // From an attached head over all that lies between to an attached head of the next layer.
  const absl::Status status =
      Read(reader.grant, {0, offset(0, 2), offset(1, 1) - offset(0, 2) + 8});
  EXPECT_CODE(ErrorCode::kForeign, status);
  EXPECT_THAT(std::string(status.message()), HasSubstr("layer 0, head 3"));
  EXPECT_CODE(ErrorCode::kForeign, Read(reader.grant, {0, 0, g.frame_bytes()}));
}

// The check's answer against the plain meaning of the rule, for every small range of a frame.
TEST(RangeCheckTest, AgreesWithTheRuleByteByByte) {
  Geometry g;
  g.layers = 2;
  g.kv_heads = 3;
  g.head_dim = 1;
  g.block_tokens = 2;
  g.element_type = ElementType::kFloat16;
  g.total_kv_heads = 3;
  const uint32_t frame = g.frame_bytes();
  for (uint32_t first = 0; first < 3; ++first) {
    for (uint32_t count = 1; first + count <= 3; ++count) {
      const RangeChecker checker(g, 1, first, count);
      for (uint32_t begin = 0; begin <= frame; ++begin) {
        for (uint32_t end = begin; end <= frame + 1; ++end) {
          bool foreign = false;
          std::set<uint32_t> entry_layers, summary_layers;
          for (uint32_t byte = begin; byte < std::min(end, frame); ++byte) {
            const bool summary = byte >= g.summaries_offset();
            const uint32_t piece = summary ? (byte - g.summaries_offset()) / g.summary_bytes()
                                           : byte / g.entry_bytes();
            (summary ? summary_layers : entry_layers).insert(piece / 3);
            foreign |= piece % 3 < first || piece % 3 >= first + count;
          }
          const ErrorCode want = begin == end || end > frame ? ErrorCode::kOutOfRange
                                 : foreign                   ? ErrorCode::kForeign
                                                             : ErrorCode::kUnspecified;
          TouchedLayers touched;
          const absl::Status status = checker.Check({0, begin, end - begin}, 0, touched);
          ASSERT_EQ(ErrorCodeOf(status), want)
              << "[" << begin << ", " << end << ") heads " << first << "+" << count << status;
          if (!status.ok()) continue;
          ASSERT_EQ(touched.entries.any(), !entry_layers.empty());
          ASSERT_EQ(touched.summaries.any(), !summary_layers.empty());
          if (touched.entries.any()) {
            ASSERT_EQ(touched.entries.first, *entry_layers.begin());
            ASSERT_EQ(touched.entries.last, *entry_layers.rbegin());
          }
          if (touched.summaries.any()) {
            ASSERT_EQ(touched.summaries.first, *summary_layers.begin());
            ASSERT_EQ(touched.summaries.last, *summary_layers.rbegin());
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace oasiskv::server
