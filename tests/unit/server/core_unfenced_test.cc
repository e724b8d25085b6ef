// Revoked writers that do not fence: which ones the daemon must disconnect, and when.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/server/core_fixture.h"

namespace oasiskv::server {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class Unfenced : public CoreFixture {
 protected:
  OpenResult Open(const std::string& name, ConnectionId connection) {
    core_->ConnectionOpened(connection);
    OpenSpec spec = Spec(name, 2);
    spec.connection = connection;
    return MustOpen(spec);
  }
  void Abort(const std::string& name) { ASSERT_TRUE(core_->Abort({name}, Me()).ok()); }
};

TEST_F(Unfenced, ARevokedWriterIsNamedOnceItsPatienceIsOver) {
  Open("a", ConnectionId(7));
  Serve(seconds(4));  // a live grant is fine, however old
  EXPECT_THAT(core_->UnfencedWriters(seconds(0)), IsEmpty());
  Abort("a");
  Serve(seconds(1));
  EXPECT_THAT(core_->UnfencedWriters(seconds(2)), IsEmpty());
  Serve(seconds(1));
  EXPECT_THAT(core_->UnfencedWriters(seconds(2)), ElementsAre(ConnectionId(7)));
  // As the daemon then does.
  core_->ConnectionClosed(ConnectionId(7));
  EXPECT_THAT(core_->UnfencedWriters(seconds(0)), IsEmpty());
  EXPECT_EQ(UsedBytes(), 0u);
}

TEST_F(Unfenced, AWriterThatFencesIsLeftAlone) {
  const OpenResult a = Open("a", ConnectionId(7));
  Abort("a");
  Serve(seconds(1));
  core_->WriterFenced(ConnectionId(7), a.grant.id);
  Serve(seconds(9));
  EXPECT_THAT(core_->UnfencedWriters(seconds(0)), IsEmpty());
  EXPECT_EQ(UsedBytes(), 0u);
}

TEST_F(Unfenced, EachConnectionIsNamedOnceAndOnlyForItsOwnGrants) {
  const OpenResult first = Open("a", ConnectionId(7));
  Open("b", ConnectionId(7));
  Open("c", ConnectionId(8));
  Abort("a");
  Abort("b");
  Serve(seconds(3));
  EXPECT_THAT(core_->UnfencedWriters(seconds(2)), ElementsAre(ConnectionId(7)));
  core_->WriterFenced(ConnectionId(7), first.grant.id);  // the other is still waited for
  EXPECT_THAT(core_->UnfencedWriters(seconds(2)), ElementsAre(ConnectionId(7)));
}

// The time in which the daemon itself was stopped does not count against its writers.
TEST_F(Unfenced, PatienceRunsInServedTime) {
  Open("a", ConnectionId(7));
  Abort("a");
  clock_.Advance(seconds(15));
  core_->Tick(clock_.Now());
  EXPECT_THAT(core_->UnfencedWriters(seconds(2)), IsEmpty());
}

}  // namespace
}  // namespace oasiskv::server
