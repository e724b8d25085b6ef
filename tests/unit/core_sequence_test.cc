// The way of a sequence through the core: open, extend, commit, seal, attach, release, abort, and
// what each refuses.
#include "tests/unit/core_fixture.h"

namespace oasiskv::server {
namespace {

using Core = CoreFixture;

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

}  // namespace
}  // namespace oasiskv::server
