// The core's limits: options, names, answers, budgets and metadata.
#include "tests/unit/server/core_fixture.h"

namespace oasiskv::server {
namespace {

using Limits = CoreFixture;
using ::testing::HasSubstr;

std::string Text(const absl::Status& status) { return std::string(status.message()); }

TEST_F(Limits, OptionsThatMakeNoSenseAreRefused) {
  auto refused = [&](const char* flag, auto change) {
    CoreOptions o = SmallOptions();
    change(o);
    const absl::Status status = KvCore::Create(o, clock_).status();
    EXPECT_CODE(ErrorCode::kInvalidArgument, status) << flag;
    EXPECT_THAT(Text(status), HasSubstr(flag));
  };
  refused("--pool_bytes", [](CoreOptions& o) { o.pool_bytes += 4096; });
  refused("--max_grants", [](CoreOptions& o) { o.max_grants = 0; });
  refused("--max_sequences", [](CoreOptions& o) { o.max_sequences = 0; });
  refused("--max_blocks_per_sequence", [](CoreOptions& o) { o.max_blocks_per_sequence = 0; });
  refused("--max_blob_bytes", [](CoreOptions& o) { o.max_blobs_bytes = 1; });
  refused("--default_lease", [](CoreOptions& o) { o.default_lease = Duration(0); });
  refused("--default_lease", [](CoreOptions& o) { o.max_lease = Millis(1); });
  refused("--max_lease", [](CoreOptions& o) { o.max_lease = Duration::max(); });
  refused("--unattended_ttl", [](CoreOptions& o) { o.unattended_ttl = Duration(-1); });
  refused("--unattended_ttl", [](CoreOptions& o) { o.unattended_ttl = Duration::max(); });
}

// Attach calls may wait, and errors repeat names: longer names are refused first.
TEST_F(Limits, EveryCallRefusesNamesThatNobodyCanHave) {
  const std::string longest(256, 'x'), longer(257, 'x');
  MustSeal(longest, 1);
  EXPECT_TRUE(core_->Attach(ReadSpec(longest)).ok());
  EXPECT_CODE(ErrorCode::kInvalidArgument, core_->Attach(ReadSpec(longer)).status());
  AttachSpec spec = ReadSpec(longest);
  spec.identity.revision = longer;
  EXPECT_CODE(ErrorCode::kInvalidArgument, core_->Attach(spec).status());
  EXPECT_CODE(ErrorCode::kInvalidArgument, core_->CheckSealed(longer, Me()));
  EXPECT_CODE(ErrorCode::kInvalidArgument, core_->Abort({longer}, Me()).status());
  EXPECT_CODE(ErrorCode::kInvalidArgument, core_->Release({}, {}, spec.identity).status());
  EXPECT_TRUE(ReleaseSequence(longer).ok());  // releasing nothing is not an error
}

TEST_F(Limits, WhatNoAttachAnswerCouldHoldIsRefusedWhereItGrows) {
  CoreOptions o = SmallOptions();
  o.max_attach_bytes = 10 * 8;  // 10 frame addresses
  Start(o);
  EXPECT_CODE(ErrorCode::kCapacity, core_->Open(Spec("a", 11)).status());
  OpenSpec summed = Spec("a", 4);  // 8 + 2 x 2 x 4 bytes a block
  summed.checksums = true;
  EXPECT_CODE(ErrorCode::kCapacity, core_->Open(summed).status());
  const OpenResult opened = MustOpen("a", 9);
  const absl::Status status = Extend(opened.grant, 2).status();
  EXPECT_CODE(ErrorCode::kCapacity, status);
  EXPECT_THAT(Text(status), HasSubstr("attach answer with 11 blocks"));
  EXPECT_EQ(UsedBytes(), 9 * FrameBytes());
  ASSERT_TRUE(Extend(opened.grant, 1).ok());
  ASSERT_TRUE(CommitAll(opened, 10).ok());
  EXPECT_CODE(ErrorCode::kCapacity, core_->Seal(Key(opened.grant), 160, {}, "b"));
  ASSERT_TRUE(core_->Seal(Key(opened.grant), 9 * 16, {}, "eight by").ok());
  EXPECT_EQ(MustAttach("a").blob, "eight by");
}

// Commits in a pattern make one piece per block: an attach must not list them without end.
TEST_F(Limits, AttachGivesUpOnCommitsInTooManyPieces) {
  CoreOptions o = SmallOptions();
  o.max_attach_bytes = 8 * sizeof(LayerBlocks);  // 8 pieces, or 16 frames
  Start(o);
  const OpenResult opened = MustOpen("a", 9);
  WriteAll(opened.grant, 9);
  for (uint32_t b = 0; b < 9; ++b) {
    if (b == 8) {
      EXPECT_EQ(MustAttach("a").committed.size(), 8u);
    }
    const LayerBlocks piece{b % 2, 1, b, 1};
    ASSERT_TRUE(core_->Commit(Key(opened.grant), std::span(&piece, 1), {}).ok());
  }
  const absl::Status status = core_->Attach(ReadSpec("a")).status();
  EXPECT_CODE(ErrorCode::kCapacity, status);
  EXPECT_THAT(Text(status), HasSubstr("attach when it is sealed"));
  EXPECT_EQ(core_->Capacity().grants_reader, 1u);
  ASSERT_TRUE(CommitAll(opened, 9).ok());
  EXPECT_EQ(MustAttach("a").committed.size(), 1u);
}

TEST_F(Limits, ManySequencesAreReleasedInOneCall) {
  CoreOptions o = SmallOptions();
  o.pool_bytes = uint64_t{32} << 20;
  o.max_sequences = 4000;
  Start(o);
  std::vector<SequenceRef> names;
  names.reserve(3001);
  for (int i = 0; i < 3000; ++i) {
    names.push_back({"s" + std::to_string(i)});
    MustSeal(names.back().name, 1);
  }
  MustOpen("open", 1);
  names.push_back({"open"});
  EXPECT_CODE(ErrorCode::kWrongState, core_->Release({}, names, Me()).status());
  EXPECT_EQ(core_->Capacity().sequences_sealed, 3000u) << "all or nothing";
  names.pop_back();
  const absl::StatusOr<ReleaseResult> released = core_->Release({}, names, Me());
  ASSERT_TRUE(released.ok()) << released.status();
  EXPECT_EQ(released->sequences, 3000u);
  EXPECT_EQ(core_->Counters().sequences_released, 3000u);
  EXPECT_EQ(UsedBytes(), FrameBytes());
}

TEST_F(Limits, BlobsOfAllSequencesShareOneBudget) {
  CoreOptions o = SmallOptions();
  o.max_blob_bytes = 100;
  o.max_blobs_bytes = 150;
  Start(o);
  const OpenResult a = MustOpen("a", 1), b = MustOpen("b", 1);
  ASSERT_TRUE(CommitAll(a, 1).ok());
  ASSERT_TRUE(CommitAll(b, 1).ok());
  ASSERT_TRUE(core_->Seal(Key(a.grant), 16, {}, std::string(100, 'x')).ok());
  const absl::Status status = core_->Seal(Key(b.grant), 16, {}, std::string(100, 'x'));
  EXPECT_CODE(ErrorCode::kCapacity, status);
  EXPECT_THAT(Text(status), HasSubstr("50 of --max_blobs_bytes=150 are free"));
  // Checksums draw on it: 2 layers x 2 heads x 4 bytes a block.
  OpenSpec sums = Spec("c", 4);
  sums.checksums = true;
  EXPECT_CODE(ErrorCode::kCapacity, core_->Open(sums).status());
  EXPECT_EQ(UsedBytes(), 2 * FrameBytes()) << "the refused open gave its frames back";
  sums.blocks = 3;
  const OpenResult c = MustOpen(sums);
  EXPECT_CODE(ErrorCode::kCapacity, Extend(c.grant, 1).status());
  ASSERT_TRUE(core_->Abort({"c"}, Me()).ok());
  ASSERT_TRUE(ReleaseSequence("a").ok());
  EXPECT_TRUE(core_->Seal(Key(b.grant), 16, {}, std::string(100, 'x')).ok());
}

TEST_F(Limits, AMillionOpensThatAreNeverCompletedStayBounded) {
  CoreOptions o = SmallOptions();
  o.max_sequences = 16;
  o.max_grants = 8;
  Start(o);
  for (int i = 0; i < 100; ++i) {
    const absl::Status status = core_->Open(Spec(std::to_string(i), 0)).status();
    if (i < 8) {
      EXPECT_TRUE(status.ok()) << status;
    } else {
      EXPECT_CODE(ErrorCode::kCapacity, status);
      EXPECT_THAT(Text(status), HasSubstr("--max_grants"));
    }
  }
  Serve(std::chrono::seconds(11));
  EXPECT_EQ(core_->Counters().sequences_expired, 8u);
  EXPECT_TRUE(core_->Sequences(SequenceId(), 100, "").empty());
  for (int i = 0; i < 16; ++i) MustSeal(std::to_string(i), 1);
  const absl::Status status = core_->Open(Spec("one more", 0)).status();
  EXPECT_CODE(ErrorCode::kCapacity, status);
  EXPECT_THAT(Text(status), HasSubstr("--max_sequences"));
}

TEST_F(Limits, MetadataPerFrameStaysWithinItsBudgetForRealModels) {
  for (uint32_t layers : {36u, 61u, 80u, 126u}) {
    CoreOptions o = SmallOptions();
    o.pool_bytes = uint64_t{32} << 20;
    o.slab_bytes = uint64_t{1} << 20;
    Start(o);
    OpenSpec spec = Spec("a", 0);
    spec.geometry.layers = layers;
    spec.geometry.head_dim = 1;
    spec.geometry.kv_heads = 1;
    spec.geometry.total_kv_heads = 1;
    spec.geometry.element_type = ElementType::kFloat16;
    const uint64_t frames = (o.slab_bytes / spec.geometry.frame_stride()) * 32;
    const OpenResult opened = MustOpen(spec);
    // In the worst way: one block at a time.
    for (uint64_t i = 0; i < frames; ++i) ASSERT_TRUE(Extend(opened.grant, 1).ok());
    const CapacityInfo capacity = core_->Capacity();
    EXPECT_EQ(capacity.classes[0].frames_used, frames);
    EXPECT_LE(capacity.metadata_bytes, 64 * frames) << layers << " layers";
  }
}

}  // namespace
}  // namespace oasiskv::server
