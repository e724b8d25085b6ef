// A sequence's life in the core: open, extend, commit, seal, attach, release, abort, and the errors
// of each.
#include <chrono>

#include "tests/unit/server/core_fixture.h"

namespace oasiskv::server {
namespace {

using Core = CoreFixture;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Text(const absl::Status& status) { return std::string(status.message()); }

std::string Indices(std::initializer_list<int32_t> values) {
  return std::string(reinterpret_cast<const char*>(values.begin()),
                     values.size() * sizeof(int32_t));
}

TEST_F(Core, OneSequenceFromOpenToRelease) {
  const OpenResult opened = MustOpen("a", 4);
  EXPECT_EQ(opened.grant.frames.size(), 4u);
  EXPECT_EQ(Word(opened.grant), opened.grant.epoch.value());
  EXPECT_EQ(UsedBytes(), 4 * FrameBytes());
  ASSERT_TRUE(CommitAll(opened, 4).ok());
  ASSERT_TRUE(Seal(opened, 4).ok());
  const AttachResult attached = MustAttach("a");
  EXPECT_EQ(attached.grant.frames, opened.grant.frames);
  EXPECT_EQ(attached.state, SequenceState::kSealed);
  EXPECT_EQ(attached.token_count, 64u);
  EXPECT_TRUE(attached.committed.empty());
  ASSERT_TRUE(ReleaseSequence("a").ok());
  EXPECT_EQ(UsedBytes(), 4 * FrameBytes()) << "the reader still holds them";
  ASSERT_TRUE(Read(attached.grant, {3, 0, 16}).ok());
  ASSERT_TRUE(Release(attached.grant).ok());
  EXPECT_EQ(UsedBytes(), 0u);
  EXPECT_TRUE(core_->Sequences(SequenceId(), 10, "").empty());
}

TEST_F(Core, OpenRefusesWhatIsMalformedNamingTheField) {
  auto refused = [&](const char* field, auto change) {
    OpenSpec spec = Spec("a", 1);
    change(spec);
    const absl::Status status = core_->Open(spec).status();
    EXPECT_CODE(ErrorCode::kInvalidArgument, status) << field;
    EXPECT_THAT(Text(status), HasSubstr(field));
  };
  refused("name", [](OpenSpec& s) { s.name = ""; });
  refused("name", [](OpenSpec& s) { s.name = std::string(257, 'x'); });
  refused("identity.model", [](OpenSpec& s) { s.identity.model = ""; });
  refused("identity.revision", [](OpenSpec& s) { s.identity.revision = std::string(257, 'x'); });
  refused("identity.tenant", [](OpenSpec& s) { s.identity.tenant = std::string(257, 'x'); });
  refused("geometry.layers", [](OpenSpec& s) { s.geometry.layers = 0; });
  refused("--max_blocks_per_sequence", [](OpenSpec& s) { s.blocks = uint32_t{1} << 31; });
  refused("--max_lease", [](OpenSpec& s) { s.lease = std::chrono::hours(1); });
  refused("lease", [](OpenSpec& s) { s.lease = Millis(-1); });
  EXPECT_EQ(core_->Counters().opens, 0u);
  EXPECT_EQ(UsedBytes(), 0u);
}

TEST_F(Core, ANameIsUniqueWithinItsTenant) {
  MustOpen("a", 1);
  EXPECT_CODE(ErrorCode::kAlreadyExists, core_->Open(Spec("a", 1)).status());
  OpenSpec other = Spec("a", 1);
  other.identity.tenant = "another";
  MustOpen(other);
  // Another model of the same tenant may not take the name either.
  other = Spec("a", 1);
  other.identity.model = "another";
  EXPECT_CODE(ErrorCode::kAlreadyExists, core_->Open(other).status());
  ASSERT_TRUE(core_->Abort({"a"}, Me()).ok());
  MustOpen("a", 1);
}

TEST_F(Core, AReleasedNameIsFreeWhileReadersHoldTheOldSequence) {
  const OpenResult first = MustSeal("a", 2);
  const AttachResult reader = MustAttach("a");
  ASSERT_TRUE(ReleaseSequence("a").ok());
  const OpenResult second = MustSeal("a", 2);
  EXPECT_NE(first.sequence, second.sequence);
  for (FrameAddress f : second.grant.frames) {
    EXPECT_THAT(reader.grant.frames, ::testing::Not(::testing::Contains(f)));
  }
  const CapacityInfo capacity = core_->Capacity();
  EXPECT_EQ(capacity.sequences_released, 1u);
  EXPECT_EQ(capacity.sequences_sealed, 1u);
  // An operator's evict takes both.
  EXPECT_EQ(*core_->Abort({"a"}, Me()), 1u);
  EXPECT_EQ(UsedBytes(), 0u);
  EXPECT_CODE(ErrorCode::kStale, Read(reader.grant, {0, 0, 16}));
}

TEST_F(Core, OtherIdentitiesAndGeometriesAreRefusedAtAttach) {
  MustSeal("a", 1);
  AttachSpec spec = ReadSpec("a");
  spec.identity.revision = "other";
  absl::Status status = core_->Attach(spec).status();
  EXPECT_CODE(ErrorCode::kIdentityMismatch, status);
  EXPECT_THAT(Text(status), HasSubstr("identity.revision"));
  spec = ReadSpec("a");
  spec.identity.tenant = "other";
  EXPECT_CODE(ErrorCode::kNotFound, core_->Attach(spec).status())
      << "tenants do not see each other";
  spec = ReadSpec("a");
  spec.geometry.block_tokens = 32;
  status = core_->Attach(spec).status();
  EXPECT_CODE(ErrorCode::kGeometryMismatch, status);
  EXPECT_THAT(Text(status), HasSubstr("geometry.block_tokens: the sequence has 16"));
  EXPECT_CODE(ErrorCode::kNotFound, core_->Attach(ReadSpec("b")).status());
  spec = ReadSpec("a");
  for (auto [first, count] :
       {std::pair<uint32_t, uint32_t>{0, 3}, {2, 1}, {1, 0}, {1, UINT32_MAX}}) {
    spec.first_head = first;
    spec.head_count = count;
    EXPECT_CODE(ErrorCode::kOutOfRange, core_->Attach(spec).status()) << first << "+" << count;
  }
  EXPECT_EQ(core_->Capacity().grants_reader, 0u);
  EXPECT_CODE(ErrorCode::kIdentityMismatch,
              core_->Abort({"a"}, {"other", "rev", "tenant"}).status());
}

TEST_F(Core, ExtendAppendsAndOldFramesStay) {
  const OpenResult opened = MustOpen("a", 2);
  const absl::StatusOr<ExtendResult> more = Extend(opened.grant, 3);
  ASSERT_TRUE(more.ok()) << more.status();
  EXPECT_EQ(more->first_block, 2u);
  EXPECT_EQ(more->frames.size(), 3u);
  EXPECT_TRUE(Write(opened.grant, {4, 0, 16}).ok());
  EXPECT_CODE(ErrorCode::kOutOfRange, Write(opened.grant, {5, 0, 16}));
  EXPECT_CODE(ErrorCode::kInvalidArgument, Extend(opened.grant, 0).status());
  EXPECT_CODE(ErrorCode::kInvalidArgument, Extend(opened.grant, UINT32_MAX).status());
  ASSERT_TRUE(CommitAll(opened, 5).ok());
  ASSERT_TRUE(Seal(opened, 5).ok());
  EXPECT_EQ(MustAttach("a").grant.frames.size(), 5u);
}

TEST_F(Core, TwoWritersThatEachHoldHalfGetAnswersNotADeadlock) {
  const OpenResult a = MustOpen("a", 256);
  const OpenResult b = MustOpen("b", 256);
  const absl::Status status = Extend(a.grant, 1).status();
  EXPECT_CODE(ErrorCode::kCapacity, status);
  EXPECT_THAT(Text(status), HasSubstr("1 frames of 8192 bytes"));
  EXPECT_CODE(ErrorCode::kCapacity, Extend(b.grant, 1).status());
  EXPECT_CODE(ErrorCode::kCapacity, core_->Open(Spec("c", 1)).status());
  EXPECT_EQ(core_->Counters().capacity_refusals, 3u);
  // One gives up, the other goes on; nothing of the refused calls was kept.
  ASSERT_TRUE(core_->Abort({"b"}, Me()).ok());
  EXPECT_TRUE(Extend(a.grant, 256).ok());
}

TEST_F(Core, CommitIsCheckedWholeBeforeAnyOfItCounts) {
  const OpenResult opened = MustOpen("a", 2);
  auto commit = [&](std::vector<LayerBlocks> ranges) {
    return core_->Commit(Key(opened.grant), ranges, {});
  };
  EXPECT_CODE(ErrorCode::kOutOfRange, commit({{0, 2, 0, 1}, {0, 3, 0, 1}}));
  EXPECT_CODE(ErrorCode::kOutOfRange, commit({{0, 2, 1, 2}}));
  EXPECT_CODE(ErrorCode::kOutOfRange, commit({{1, UINT32_MAX, 0, 1}}));
  EXPECT_CODE(ErrorCode::kOutOfRange, commit({{0, 1, UINT32_MAX, 2}}));
  EXPECT_CODE(ErrorCode::kInvalidArgument, commit({}));
  EXPECT_CODE(ErrorCode::kInvalidArgument, commit({{0, 0, 0, 1}}));
  EXPECT_CODE(ErrorCode::kInvalidArgument, commit({{0, 2, 0, 2}, {0, 2, 0, 1}}));
  const uint32_t checksum = 1;
  const LayerBlocks one{0, 1, 0, 1};
  EXPECT_CODE(ErrorCode::kInvalidArgument,
              core_->Commit(Key(opened.grant), std::span(&one, 1), std::span(&checksum, 1)));
  EXPECT_TRUE(MustAttach("a").committed.empty()) << "nothing of the refused calls was kept";
  WriteAll(opened.grant, 2);
  EXPECT_TRUE(commit({{1, 1, 0, 2}}).ok());
  EXPECT_TRUE(commit({{1, 1, 0, 2}}).ok()) << "twice is not an error";
  const AttachResult attached = MustAttach("a");
  ASSERT_EQ(attached.committed.size(), 1u);
  EXPECT_EQ(attached.committed[0].first_layer, 1u);
  EXPECT_EQ(attached.committed[0].block_count, 2u);
  EXPECT_EQ(core_->Sequences(SequenceId(), 1, "")[0].committed_layer_blocks, 2u);
}

TEST_F(Core, ReadersGrantsCannotDoAWritersCalls) {
  MustSeal("a", 1);
  const AttachResult reader = MustAttach("a");
  const LayerBlocks one{0, 1, 0, 1};
  EXPECT_CODE(ErrorCode::kPermissionDenied, Extend(reader.grant, 1).status());
  EXPECT_CODE(ErrorCode::kPermissionDenied,
              core_->Commit(Key(reader.grant), std::span(&one, 1), {}));
  EXPECT_CODE(ErrorCode::kPermissionDenied, core_->Seal(Key(reader.grant), 16, {}, ""));
}

TEST_F(Core, SealNeedsEveryLayerOfEveryNeededBlockAndGivesSparesBack) {
  const OpenResult opened = MustOpen("a", 4);
  const std::vector<LayerBlocks> most = {{0, 2, 0, 2}, {0, 1, 2, 1}};
  WriteAll(opened.grant, 4);
  ASSERT_TRUE(core_->Commit(Key(opened.grant), most, {}).ok());
  const absl::Status status = core_->Seal(Key(opened.grant), 33, {}, "");
  EXPECT_CODE(ErrorCode::kNotCommitted, status);
  EXPECT_THAT(Text(status), HasSubstr("block 2 of the 3 that 33 tokens need: layer 1"));
  EXPECT_CODE(ErrorCode::kOutOfRange, core_->Seal(Key(opened.grant), 65, {}, ""));
  EXPECT_CODE(ErrorCode::kOutOfRange, core_->Seal(Key(opened.grant), UINT64_MAX, {}, ""));
  EXPECT_CODE(ErrorCode::kInvalidArgument, core_->Seal(Key(opened.grant), 0, {}, ""));
  const AttachResult early = MustAttach("a");  // holds all 4
  ASSERT_TRUE(core_->Seal(Key(opened.grant), 32, {}, "").ok());
  EXPECT_EQ(UsedBytes(), 4 * FrameBytes());
  EXPECT_CODE(ErrorCode::kNotCommitted, Read(early.grant, {3, 0, 16})) << "a spare block";
  EXPECT_TRUE(Read(early.grant, {1, 0, 16}).ok());
  ASSERT_TRUE(Release(early.grant).ok());
  EXPECT_EQ(UsedBytes(), 2 * FrameBytes());
  EXPECT_EQ(MustAttach("a").grant.frames.size(), 2u);
  EXPECT_EQ(core_->Sequences(SequenceId(), 1, "")[0].bytes, 2 * FrameBytes());
}

TEST_F(Core, TheFirstTopKAndTheBlobReachTheReader) {
  const OpenResult opened = MustOpen("a", 2);
  ASSERT_TRUE(CommitAll(opened, 2).ok());
  auto seal = [&](uint32_t k, std::string indices, std::string blob) {
    return core_->Seal(Key(opened.grant), 32, {k, std::move(indices)}, std::move(blob));
  };
  const std::string good = Indices({1, 0, 0, -1, 1, 1, -1, -1});
  EXPECT_CODE(ErrorCode::kInvalidArgument, seal(1, good, ""));
  EXPECT_CODE(ErrorCode::kInvalidArgument, seal(0, good, ""));
  absl::Status status = seal(2, Indices({1, 0, 0, -1, 1, 2, -1, -1}), "");
  EXPECT_CODE(ErrorCode::kOutOfRange, status);
  EXPECT_THAT(Text(status), HasSubstr("first_topk[layer 1][head 0][1] is block 2"));
  EXPECT_CODE(ErrorCode::kOutOfRange, seal(2, Indices({1, 0, 0, -2, 1, 1, -1, -1}), ""));
  status = seal(2, good, std::string((1 << 20) + 1, 'b'));
  EXPECT_CODE(ErrorCode::kInvalidArgument, status);
  EXPECT_THAT(Text(status), HasSubstr("--max_blob_bytes"));
  ASSERT_TRUE(seal(2, good, "blob").ok());
  const AttachResult attached = MustAttach("a");
  EXPECT_EQ(attached.first_topk.k, 2u);
  EXPECT_EQ(attached.first_topk.indices, good);
  EXPECT_EQ(attached.blob, "blob");
}

TEST_F(Core, ChecksumsReachTheReaderAsTheWriterGaveThem) {
  OpenSpec spec = Spec("a", 3);
  spec.checksums = true;
  const OpenResult opened = MustOpen(spec);
  // In the order range, block, layer, head: two blocks of layer 1, then block 0 of layer 0.
  const std::vector<LayerBlocks> ranges = {{1, 1, 0, 2}, {0, 1, 0, 1}};
  const std::vector<uint32_t> given = {11, 12, 21, 22, 1, 2};
  WriteAll(opened.grant, 3);
  EXPECT_CODE(ErrorCode::kInvalidArgument, core_->Commit(Key(opened.grant), ranges, {}));
  ASSERT_TRUE(core_->Commit(Key(opened.grant), ranges, given).ok());
  EXPECT_THAT(MustAttach("a").checksums, ElementsAre(1, 2, 11, 12, 0, 0, 21, 22, 0, 0, 0, 0));
  // What is committed cannot have changed: a repeated commit does not change its checksum.
  const LayerBlocks again{0, 2, 0, 2};
  const std::vector<uint32_t> second = {91, 92, 93, 94, 3, 4, 95, 96};
  ASSERT_TRUE(core_->Commit(Key(opened.grant), std::span(&again, 1), second).ok());
  ASSERT_TRUE(core_->Seal(Key(opened.grant), 20, {}, "").ok());
  EXPECT_THAT(MustAttach("a").checksums, ElementsAre(1, 2, 11, 12, 3, 4, 21, 22));
}

TEST_F(Core, DrainingOpensNothingNewAndServesOn) {
  const OpenResult opened = MustOpen("a", 1);
  core_->SetDraining(true);
  EXPECT_TRUE(core_->draining());
  EXPECT_CODE(ErrorCode::kDraining, core_->Open(Spec("b", 1)).status());
  EXPECT_CODE(ErrorCode::kDraining, core_->Attach(ReadSpec("b")).status());
  EXPECT_CODE(ErrorCode::kDraining, core_->CheckSealed("b", Me()));
  ASSERT_TRUE(CommitAll(opened, 1).ok());
  ASSERT_TRUE(Seal(opened, 1).ok());
  EXPECT_TRUE(core_->CheckSealed("a", Me()).ok());
  MustAttach("a");
  core_->SetDraining(false);
  MustAttach("a");
}

TEST_F(Core, ReleaseOfAnOpenSequenceIsRefusedUnlessItsWriterGoesToo) {
  const OpenResult a = MustOpen("a", 1);
  MustSeal("b", 1);
  const std::vector<SequenceRef> names = {{"b"}, {"a"}, {"unknown"}};
  const absl::Status status = core_->Release({}, names, Me()).status();
  EXPECT_CODE(ErrorCode::kWrongState, status);
  EXPECT_THAT(Text(status), HasSubstr("\"a\" is open"));
  EXPECT_EQ(core_->Capacity().sequences_sealed, 1u) << "refused whole";
  const GrantKey key = Key(a.grant);
  const absl::StatusOr<ReleaseResult> released = core_->Release(std::span(&key, 1), names, Me());
  ASSERT_TRUE(released.ok()) << released.status();
  EXPECT_EQ(released->grants, 1u);
  EXPECT_EQ(released->sequences, 1u);
  EXPECT_EQ(UsedBytes(), 0u);
  // A sequence that is gone is not an error.
  const absl::StatusOr<ReleaseResult> again = core_->Release(std::span(&key, 1), names, Me());
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->grants + again->sequences, 0u);
  EXPECT_EQ(*core_->Abort({"a"}, Me()), 0u);
}

TEST_F(Core, CheckSealedSaysWhatAWaiterHasToKnow) {
  EXPECT_CODE(ErrorCode::kNotFound, core_->CheckSealed("a", Me()));
  const OpenResult opened = MustOpen("a", 1);
  EXPECT_CODE(ErrorCode::kNotSealed, core_->CheckSealed("a", Me()));
  EXPECT_CODE(ErrorCode::kIdentityMismatch, core_->CheckSealed("a", {"other", "rev", "tenant"}));
  ASSERT_TRUE(CommitAll(opened, 1).ok());
  ASSERT_TRUE(Seal(opened, 1).ok());
  EXPECT_TRUE(core_->CheckSealed("a", Me()).ok());
  ASSERT_TRUE(core_->Abort({"a"}, Me()).ok());
  EXPECT_CODE(ErrorCode::kNotFound, core_->CheckSealed("a", Me()));
}

TEST_F(Core, LatentGeometryOneHeadNoAxis) {
  OpenSpec spec = Spec("mla", 3);
  spec.geometry = {};
  spec.geometry.layers = 61;
  spec.geometry.kv_heads = 1;
  spec.geometry.head_dim = 576;
  spec.geometry.element_type = ElementType::kBFloat16;
  spec.geometry.packing = Packing::kLatent;
  spec.geometry.total_kv_heads = 1;
  const Geometry& g = spec.geometry;
  ASSERT_GT(g.frame_stride(), SmallOptions().slab_bytes) << "one frame takes several slabs";
  const OpenResult opened = MustOpen(spec);
  EXPECT_EQ(UsedBytes(), 3 * g.frame_stride());
  const uint32_t latent = g.entry_bytes();
  EXPECT_EQ(latent, 16u * 576 * 2);
  EXPECT_TRUE(Write(opened.grant, {2, g.entry_offset(LayerIndex(60), HeadIndex(0)), latent}).ok());
  WriteAll(opened.grant, 3, g);
  const LayerBlocks layer{60, 1, 0, 3};
  ASSERT_TRUE(core_->Commit(Key(opened.grant), std::span(&layer, 1), {}).ok());
  AttachSpec read = ReadSpec("mla");
  read.geometry = g;
  const AttachResult reader = *core_->Attach(read);
  EXPECT_TRUE(Read(reader.grant, {1, g.entry_offset(LayerIndex(60), HeadIndex(0)), latent}).ok());
  EXPECT_TRUE(
      Read(reader.grant, {1, g.summary_offset(LayerIndex(60), HeadIndex(0)), g.summary_bytes()})
          .ok());
  EXPECT_CODE(ErrorCode::kNotCommitted,
              Read(reader.grant, {1, g.entry_offset(LayerIndex(59), HeadIndex(0)), latent}));
  EXPECT_CODE(ErrorCode::kOutOfRange, Read(reader.grant, {1, g.frame_bytes(), 1}));
}

TEST_F(Core, ListingsComeInPages) {
  for (int i = 0; i < 5; ++i) MustSeal(std::to_string(i), 1);
  OpenSpec other = Spec("x", 1);
  other.identity.tenant = "other";
  MustOpen(other);
  for (int i = 0; i < 5; ++i) MustAttach(std::to_string(i));
  std::vector<std::string> names;
  SequenceId after;
  while (true) {
    const std::vector<SequenceInfo> page = core_->Sequences(after, 2, "");
    if (page.empty()) break;
    EXPECT_LE(page.size(), 2u);
    for (const SequenceInfo& s : page) names.push_back(s.name);
    after = page.back().id;
  }
  EXPECT_THAT(names, ElementsAre("0", "1", "2", "3", "4", "x"));
  EXPECT_EQ(core_->Sequences(SequenceId(), 10, "other").size(), 1u);
  EXPECT_EQ(core_->Sequences(SequenceId(), 10, "tenant")[0].readers, 1u);
  const std::vector<GrantInfo> first = core_->Grants(GrantId(), 4);
  const std::vector<GrantInfo> rest = core_->Grants(first.back().id, 100);
  EXPECT_EQ(first.size() + rest.size(), 6u);
  EXPECT_GT(rest[0].id, first.back().id);
  EXPECT_TRUE(first[0].writer);
  EXPECT_EQ(first[1].sequence_name, "0");
  EXPECT_EQ(first[1].holder, "test");
}

}  // namespace
}  // namespace oasiskv::server
