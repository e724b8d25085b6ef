// Peers that are stopped, killed, silent, foreign or not allowed.
#include <algorithm>

#include "tests/fabric/verbs_fixture.h"

namespace oasiskv::fabric::verbs {
namespace {

using ::testing::HasSubstr;

class VerbsPeers : public VerbsTest {
 protected:
  void SetUp() override { OASISKV_NEED_RXE(); }

  // A daemon in a process of its own.
  void StartDaemon() {
    daemon_ = std::make_unique<PeerProcess>("daemon", pool_);
    const std::string ready = ReceivePacket(daemon_->socket());
    ASSERT_EQ(ready, "R");
    control_ = std::make_shared<SocketControl>(daemon_->socket());
  }
  // Whole frames into `target`.
  static std::vector<ReadPiece> Frames(std::vector<std::byte>& target) {
    std::vector<ReadPiece> pieces;
    for (uint32_t b = 0; b < target.size() / kFrameBytes; ++b) {
      pieces.push_back({{b, 0, kFrameBytes}, target.data() + b * kFrameBytes});
    }
    return pieces;
  }

  std::unique_ptr<PeerProcess> daemon_;
};

TEST_F(VerbsPeers, AStoppedDaemonStillServesAndItsRevokedWordsStillCount) {
  StartDaemon();
  auto reader = Connect(Access::kRead);
  std::vector<std::byte> target(4 * kFrameBytes);
  auto grant = pool_.Grant(1, Access::kRead);
  daemon_->Signal(SIGSTOP);
  const auto pieces = Frames(target);
  EXPECT_EQ(reader->Read(grant, pieces, Soon())->Wait(), absl::OkStatus());
  for (const ReadPiece& piece : pieces) EXPECT_TRUE(TestPool::Holds(piece.into, piece.from));
  pool_.SetWord(grant->word_slot, RevokedWord(RevokeReason::kReleased, grant->epoch));
  EXPECT_EQ(ErrorCodeOf(reader->Read(grant, pieces, Soon())->Wait()), ErrorCode::kStale);
  daemon_->Signal(SIGCONT);
}

TEST_F(VerbsPeers, AKilledDaemonEndsEveryBatchAsPeerLost) {
  StartDaemon();
  auto reader = Connect(Access::kRead);
  auto grant = pool_.Grant(1, Access::kRead);
  std::vector<std::byte> direct(64 * kFrameBytes), copied(8 * kFrameBytes);
  const auto registration = Register(*reader, direct);
  std::unique_ptr<Transfer> first, second;
  {
    const Silence silence;  // so that they are not over before the daemon is
    first = reader->Read(grant, Frames(direct), Soon());
    second = reader->Read(grant, Frames(copied), Soon());
    daemon_->Signal(SIGKILL);
    daemon_->Reap();
  }
  EXPECT_EQ(ErrorCodeOf(first->Wait()), ErrorCode::kPeerLost) << first->Wait();
  EXPECT_EQ(ErrorCodeOf(second->Wait()), ErrorCode::kPeerLost) << second->Wait();
  EXPECT_EQ(ErrorCodeOf(reader->Health()), ErrorCode::kPeerLost);
  EXPECT_EQ(ErrorCodeOf(reader->Read(grant, Frames(copied), Soon())->Wait()), ErrorCode::kPeerLost);
  std::fill(direct.begin(), direct.end(), std::byte{0x5a});
  // The next daemon gets a connection of its own.
  StartDaemon();
  auto again = Connect(Access::kRead);
  EXPECT_EQ(again->Read(grant, Frames(copied), Soon())->Wait(), absl::OkStatus());
  EXPECT_EQ(std::count(direct.begin(), direct.end(), std::byte{0x5a}),
            static_cast<std::ptrdiff_t>(direct.size()));
}

TEST_F(VerbsPeers, AnIdleConnectionNoticesThatTheDaemonIsGone) {
  StartDaemon();
  VerbsConnectOptions options = Options(Access::kRead);
  options.keepalive = std::chrono::milliseconds(100);
  options.peer_patience = std::chrono::milliseconds(500);
  auto reader = Connect(options, control_);
  EXPECT_EQ(reader->Health(), absl::OkStatus());
  daemon_->Signal(SIGKILL);
  daemon_->Reap();
  EXPECT_TRUE(Eventually([&] { return ErrorCodeOf(reader->Health()) == ErrorCode::kPeerLost; }));
}

// The deadline comes long before the device gives up. Fails when the batch waits for the device,
// and when the buffer is given back while the device may still write to it.
TEST_F(VerbsPeers, ASilentDaemonMeansDeadlineExceededAndNothingLate) {
  Serve();
  VerbsConnectOptions options = Options(Access::kRead);
  options.drain_patience = std::chrono::milliseconds(20);
  auto reader = Connect(options, control_);
  auto grant = pool_.Grant(1, Access::kRead);
  std::vector<std::byte> target(8 * kFrameBytes), other(kFrameBytes);
  const auto registration = Register(*reader, target);
  ASSERT_EQ(reader->Read(grant, Frames(other), Soon())->Wait(), absl::OkStatus());
  {
    const Silence silence;
    auto transfer = reader->Read(grant, Frames(target), In(200));
    EXPECT_EQ(ErrorCodeOf(transfer->Wait()), ErrorCode::kDeadlineExceeded) << transfer->Wait();
    std::fill(target.begin(), target.end(), std::byte{0x5a});
  }
  // The daemon's answers, sent again, reach the host now. The one queue pair that would have taken
  // them is down; the others go on.
  EXPECT_EQ(reader->Read(grant, Frames(other), Soon())->Wait(), absl::OkStatus());
  EXPECT_EQ(std::count(target.begin(), target.end(), std::byte{0x5a}),
            static_cast<std::ptrdiff_t>(target.size()));
  EXPECT_EQ(reader->Stats().deadline, 1u);

  // A batch on all queue pairs takes the connection along.
  std::vector<ReadPiece> pieces;
  for (uint32_t i = 0; i < 128; ++i) {
    pieces.push_back({{i % 32, i * 512, 512}, target.data() + i * 1024});
  }
  {
    const Silence silence;
    auto transfer = reader->Read(grant, pieces, Soon());
    transfer->Cancel();
    EXPECT_EQ(ErrorCodeOf(transfer->Wait()), ErrorCode::kCancelled);
    std::fill(target.begin(), target.end(), std::byte{0x5b});
  }
  EXPECT_EQ(ErrorCodeOf(reader->Health()), ErrorCode::kPeerLost);
  auto again = Connect(Options(Access::kRead), control_);
  EXPECT_EQ(again->Read(grant, Frames(other), Soon())->Wait(), absl::OkStatus());
  EXPECT_EQ(std::count(target.begin(), target.end(), std::byte{0x5b}),
            static_cast<std::ptrdiff_t>(target.size()));
}

// A batch that takes queue pairs down with it must not take the others' work along: that goes out
// on those that are left.
TEST_F(VerbsPeers, OtherBatchesOutliveAQueuePairThatWasTakenDown) {
  Serve();
  VerbsConnectOptions options = Options(Access::kRead);
  options.drain_patience = std::chrono::milliseconds(0);
  options.window_bytes = 64 << 20;
  auto reader = Connect(options, control_);
  auto grant = pool_.Grant(1, Access::kRead);
  std::vector<std::byte> one(kFrameBytes), rest(64 * kFrameBytes);
  const auto first = Register(*reader, one);
  const auto second = Register(*reader, rest);
  std::unique_ptr<Transfer> survivor;
  {
    const Silence silence;
    auto victim = reader->Read(grant, Frames(one), Soon());
    survivor = reader->Read(grant, Frames(rest), Soon());
    victim->Cancel();  // takes down the queue pair that its one request is on
    EXPECT_EQ(ErrorCodeOf(victim->Wait()), ErrorCode::kCancelled);
  }
  EXPECT_EQ(survivor->Wait(), absl::OkStatus());
  for (const ReadPiece& piece : Frames(rest)) {
    ASSERT_TRUE(TestPool::Holds(piece.into, piece.from));
  }
  EXPECT_EQ(reader->Health(), absl::OkStatus());
  // What of the survivor was on that queue pair went out again.
  EXPECT_GT(reader->Stats().requests, 65u);
}

TEST_F(VerbsPeers, AKilledClientIsForgotten) {
  Serve(/*probe_interval=*/std::chrono::milliseconds(200));
  auto stays = Connect(Access::kRead);
  PeerProcess client("client", pool_);
  const std::string hello = ReceivePacket(client.socket());
  ASSERT_FALSE(hello.empty());
  const auto bytes = endpoint_->Accept(hello.substr(1));
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  const auto answer = ParseServerHello(*bytes);
  ASSERT_TRUE(answer.ok()) << answer.status();
  SendPacket(client.socket(), Operation::kAccept, *bytes);
  ASSERT_EQ(ReceivePacket(client.socket()), "R");
  EXPECT_EQ(endpoint_->Stats().connections, 2u);
  client.Signal(SIGKILL);
  EXPECT_TRUE(Eventually([&] { return endpoint_->Stats().connections == 1; }));
  EXPECT_TRUE(Eventually([&] { return !authority_.closed().empty(); }));
  ASSERT_EQ(authority_.closed().size(), 1u);
  EXPECT_EQ(authority_.closed()[0], answer->connection);
  std::vector<std::byte> target(kFrameBytes);
  EXPECT_EQ(stays->Read(pool_.Grant(1, Access::kRead), Frames(target), Soon())->Wait(),
            absl::OkStatus());
}

TEST_F(VerbsPeers, AnotherIncarnationAndTooManyClientsAreRefused) {
  auto endpoint =
      ServeVerbs({.port = {.device = "rxe1"}, .max_connections = 1}, pool_.Export(), authority_);
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  auto control = std::make_shared<DirectControl>(**endpoint);
  VerbsConnectOptions options = Options(Access::kRead);
  options.incarnation = kIncarnation + 1;
  EXPECT_EQ(ErrorCodeOf(ConnectVerbs(options, control).status()), ErrorCode::kStale);
  {
    auto only = Connect(Options(Access::kRead), control);
    EXPECT_EQ(ErrorCodeOf(ConnectVerbs(Options(Access::kRead), control).status()),
              ErrorCode::kCapacity);
  }
  EXPECT_NE(Connect(Options(Access::kRead), control), nullptr);
  EXPECT_EQ((*endpoint)->Stats().connections_refused, 2u);
  EXPECT_EQ((*endpoint)->Stats().connections_total, 2u);
}

TEST_F(VerbsPeers, DevicesPortsAndGidsThatAreNotThereAreNamed) {
  auto error_of = [&](const VerbsPortOptions& port) {
    auto endpoint = ServeVerbs({.port = port}, pool_.Export(), authority_);
    EXPECT_FALSE(endpoint.ok());
    return std::string(endpoint.status().message());
  };
  EXPECT_THAT(error_of({.device = "mlx5_0"}),
              HasSubstr("devices seen: rxe0 (port 1 active), rxe1 (port 1 active)"));
  EXPECT_THAT(error_of({.device = "rxe1", .port = 2}), HasSubstr("has 1 port"));
  EXPECT_THAT(error_of({.device = "rxe1", .gid_index = 5000}), HasSubstr("--verbs_gid_index=5000"));
  EXPECT_THAT(error_of({.device = "rxe1", .gid_index = 200}), HasSubstr("empty"));
  auto endpoint = ServeVerbs({.port = {.device = "rxe1"}}, pool_.Export(), authority_);
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  EXPECT_EQ((*endpoint)->address(), "rxe1:1");
  EXPECT_THAT((*endpoint)->Describe(), HasSubstr("RoCE v2, ::ffff:10.77.0.2, rdma1"));
}

TEST_F(VerbsPeers, LinkLocalAddressesConnectToo) {
  Serve();
  VerbsConnectOptions options = Options(Access::kRead);
  options.port.gid_index = 0;
  auto reader = Connect(options, control_);
  ASSERT_NE(reader, nullptr);
  EXPECT_THAT(reader->Describe(), HasSubstr("GID fe80::"));
}

TEST_F(VerbsPeers, TheLimitOnLockedMemoryIsNamedWithNeedAndMend) {
  PeerProcess daemon("memlock", pool_);
  const std::string answer = ReceivePacket(daemon.socket());
  ASSERT_FALSE(answer.empty());
  EXPECT_EQ(answer[0], 'E') << answer;
  EXPECT_THAT(answer, HasSubstr("RLIMIT_MEMLOCK"));
  EXPECT_THAT(answer, HasSubstr("is 64 KiB"));
  EXPECT_THAT(answer, HasSubstr("LimitMEMLOCK=infinity"));
}

}  // namespace
}  // namespace oasiskv::fabric::verbs
