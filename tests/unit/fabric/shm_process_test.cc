// The shm fabric between processes: other users, killed writers, daemons that are stopped or
// killed.
#include <grp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

#include "tests/unit/fabric/shm_fixture.h"

namespace oasiskv::fabric::shm {
namespace {

constexpr uint32_t kNobody = 65534;
constexpr uint32_t kOtherGroup = 54321;

TEST_F(ShmTest, AKilledWriterIsReportedAsClosed) {
  const WordSlot connected(kWords - 1);  // how the child tells its connection id
  Child writer([&] {
    std::unique_ptr<Connection> connection;
    const bool made = Eventually([&] {
      auto attempt = ConnectShm(folder_.path(), kIncarnation, Access::kWrite);
      if (attempt.ok()) connection = *std::move(attempt);
      return connection != nullptr;
    });
    if (!made) return 1;
    pool_.SetWord(connected, connection->connection_id().value());
    ::pause();
    return 2;
  });
  Serve();
  ASSERT_TRUE(Eventually([&] { return pool_.Word(connected) != 0; }));
  EXPECT_TRUE(authority_.closed().empty());
  writer.Signal(SIGKILL);
  EXPECT_EQ(writer.Exit(), -1);
  ASSERT_TRUE(Eventually([&] { return authority_.closed().size() == 1; }));
  EXPECT_EQ(authority_.closed()[0], ConnectionId(pool_.Word(connected)));
}

// As root only: a test that wants to be several users.
class ShmUsers : public ShmTest {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root, to connect as other users";
  }
  // What ConnectShm says to a process of kNobody, with kOtherGroup as a supplementary group, once
  // the daemon serves.
  ErrorCode AsNobody(std::vector<uint32_t> allowed_uids, int64_t allowed_gid) {
    int go[2];
    EXPECT_EQ(::pipe(go), 0);
    Child child([&] {
      char byte;
      const gid_t group = kOtherGroup;
      if (::read(go[0], &byte, 1) != 1 || ::setgroups(1, &group) != 0 ||
          ::setresgid(kNobody, kNobody, kNobody) != 0 ||
          ::setresuid(kNobody, kNobody, kNobody) != 0) {
        return 255;
      }
      auto connection = ConnectShm(folder_.path(), kIncarnation, Access::kRead);
      return static_cast<int>(ErrorCodeOf(connection.status()));
    });
    ShmOptions options;
    options.allowed_uids = std::move(allowed_uids);
    options.allowed_gid = allowed_gid;
    Serve({}, std::move(options));
    EXPECT_EQ(::write(go[1], "x", 1), 1);
    const int code = child.Exit();
    ::close(go[0]);
    ::close(go[1]);
    refused_ = server_->Stats().connections_refused;
    server_.reset();
    return static_cast<ErrorCode>(code);
  }
  uint64_t refused_ = 0;
};

TEST_F(ShmUsers, OthersAreKeptOutByTheFileAndByTheirCredentials) {
  EXPECT_EQ(AsNobody({}, -1), ErrorCode::kPermissionDenied);
  EXPECT_EQ(refused_, 0u);  // it did not get as far
  EXPECT_EQ(AsNobody({12345}, -1), ErrorCode::kPermissionDenied);
  EXPECT_EQ(refused_, 1u);
  EXPECT_EQ(AsNobody({}, 12345), ErrorCode::kPermissionDenied);
}

TEST_F(ShmUsers, AllowedUsersAndGroupsGetIn) {
  EXPECT_EQ(AsNobody({12345, kNobody}, -1), ErrorCode::kUnspecified);
  EXPECT_EQ(AsNobody({}, kNobody), ErrorCode::kUnspecified);
  EXPECT_EQ(AsNobody({}, kOtherGroup), ErrorCode::kUnspecified);
}

// A daemon in a process of its own, made before this one has any thread. It ends with its first
// connection and tells by its exit code whether every fence had come, in order.
class ShmProcesses : public ::testing::Test {
 protected:
  static constexpr uint64_t kFences = 3000;
  static constexpr WordSlot kFencesHeard{kWords - 1};  // how the child tells

  ShmProcesses() : daemon_([this] { return RunDaemon(); }) {
    connection_ = nullptr;
    EXPECT_TRUE(Eventually([&] {
      auto connection = ConnectShm(folder_.path(), kIncarnation, Access::kWrite);
      if (connection.ok()) connection_ = *std::move(connection);
      return connection_ != nullptr;
    }));
  }
  // 0 when the fences 1..kFences came in order before the connection closed.
  int RunDaemon() {
    RecordingAuthority authority;
    ShmOptions options;
    options.socket_path = folder_.path();
    auto server = ServeShm(options, pool_.Export(), authority);
    if (!server.ok()) return 1;
    if (!Eventually([&] {
          pool_.SetWord(kFencesHeard, authority.fenced().size());
          return !authority.closed().empty();
        })) {
      return 2;
    }
    const auto fenced = authority.fenced();
    if (fenced.size() != kFences) return 3;
    for (uint64_t i = 0; i < kFences; ++i) {
      if (fenced[i].second != GrantId(i + 1)) return 4;
    }
    return 0;
  }

  SocketFolder folder_;
  TestPool pool_;  // shared with the child
  Child daemon_;
  std::unique_ptr<Connection> connection_;
};

TEST_F(ShmProcesses, AKilledDaemonIsPeerLost) {
  auto grant = pool_.Grant(1, Access::kRead);
  std::vector<std::byte> buffer(kFrameBytes);
  const std::vector<ReadPiece> pieces = {{{5, 0, kFrameBytes}, buffer.data()}};
  ASSERT_TRUE(connection_->Read(grant, pieces, Soon())->Wait().ok());
  EXPECT_EQ(buffer[77], TestPool::Expected(pieces[0].from, 77));
  daemon_.Signal(SIGKILL);
  EXPECT_EQ(daemon_.Exit(), -1);
  EXPECT_TRUE(Eventually([&] { return !connection_->Health().ok(); }));
  EXPECT_EQ(ErrorCodeOf(connection_->Health()), ErrorCode::kPeerLost);
  EXPECT_EQ(ErrorCodeOf(connection_->Read(grant, pieces, Soon())->Wait()), ErrorCode::kPeerLost);
  auto writer = pool_.Grant(2, Access::kWrite);
  const std::vector<WritePiece> writes = {{{5, 0, kFrameBytes}, buffer.data()}};
  EXPECT_EQ(ErrorCodeOf(connection_->Write(writer, writes, Soon())->Wait()), ErrorCode::kPeerLost);
  connection_->FenceWriter(GrantId(2));
  EXPECT_EQ(connection_->Stats().failed, 2u);
  EXPECT_EQ(ErrorCodeOf(ConnectShm(folder_.path(), kIncarnation, Access::kRead).status()),
            ErrorCode::kPeerLost);
}

TEST_F(ShmProcesses, AStoppedDaemonHoldsNobodyUpAndGetsEveryFenceLater) {
  daemon_.Signal(SIGSTOP);
  auto grant = pool_.Grant(1, Access::kRead);
  std::byte byte;
  const std::vector<ReadPiece> pieces = {{{0, 0, 1}, &byte}};
  EXPECT_TRUE(connection_->Read(grant, pieces, Soon())->Wait().ok());
  for (uint64_t i = 1; i <= kFences; ++i)
    connection_->FenceWriter(GrantId(i));  // more than the socket holds
  EXPECT_TRUE(connection_->Health().ok());
  daemon_.Signal(SIGCONT);
  EXPECT_TRUE(Eventually([&] { return pool_.Word(kFencesHeard) == kFences; }));
  connection_.reset();
  EXPECT_EQ(daemon_.Exit(), 0);
}

}  // namespace
}  // namespace oasiskv::fabric::shm
