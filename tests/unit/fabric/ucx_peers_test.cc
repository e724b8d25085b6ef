// The ucx fabric and its peers: addresses, hellos, daemons that are stopped, killed or restarted.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/address.h"
#include "tests/unit/fabric/ucx_fixture.h"

extern char** environ;

namespace oasiskv::fabric::ucx {
namespace {

// What a child does: serves until its standard input ends, and says on standard output where.
int ServeMain(const char* port, const char* incarnation) {
  FakeAuthority authority;
  GrantAll(authority);
  ExportedMemory memory;
  memory.incarnation = std::strtoull(incarnation, nullptr, 10);
  auto server = ServeUcx({.host = "127.0.0.1", .port = static_cast<uint16_t>(std::atoi(port))},
                         memory, authority);
  if (!server.ok()) {
    std::fprintf(stderr, "%s\n", server.status().ToString().c_str());
    return 1;
  }
  std::printf("%s\n", (*server)->address().c_str());
  std::fflush(stdout);
  char ignored;
  while (::read(STDIN_FILENO, &ignored, 1) > 0) {
  }
  return 0;
}

// A daemon in a process of its own, started afresh (UCX does not live through a fork); killed with
// this object.
class ServerProcess {
 public:
  explicit ServerProcess(uint16_t port = 0, uint64_t incarnation = kIncarnation) {
    int in[2];
    int out[2];
    if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) return;
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    std::string port_text = absl::StrCat(port);
    std::string incarnation_text = absl::StrCat(incarnation);
    std::string name = "ucx_peers_test";
    std::string verb = "--serve";
    char* argv[] = {name.data(), verb.data(), port_text.data(), incarnation_text.data(), nullptr};
    if (::posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, argv, environ) != 0) pid_ = -1;
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(in[0]);
    ::close(out[1]);
    stdin_ = in[1];
    char c;
    while (::read(out[0], &c, 1) == 1 && c != '\n') address_ += c;
    ::close(out[0]);
  }
  ~ServerProcess() {
    Signal(SIGKILL);
    if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
    ::close(stdin_);
  }
  void Signal(int number) const {
    if (pid_ <= 0) return;
    ::kill(pid_, number);
    if (number == SIGSTOP) ::waitpid(pid_, nullptr, WUNTRACED);  // until every thread has stopped
  }
  const std::string& address() const { return address_; }
  uint16_t port() const { return ParseAddress(address_, 0)->port; }

 private:
  pid_t pid_ = -1;
  int stdin_ = -1;
  std::string address_;
};

std::shared_ptr<GrantView> ChildGrant(Access access) {
  auto view = std::make_shared<GrantView>();
  view->id = GrantId(1);
  view->epoch = Epoch(1001);
  view->access = access;
  view->frame_bytes = kFrameBytes;
  view->frames.resize(kFrames);
  return view;
}

std::unique_ptr<Connection> ConnectTo(const ServerProcess& server) {
  auto connection = ConnectUcx({.address = server.address(), .incarnation = kIncarnation});
  EXPECT_TRUE(connection.ok()) << connection.status();
  return connection.ok() ? *std::move(connection) : nullptr;
}

class UcxPeersTest : public UcxTest {
 protected:
  static absl::Status FailedConnect(const UcxConnectOptions& options) {
    auto connection = ConnectUcx(options);
    EXPECT_FALSE(connection.ok());
    return connection.status();
  }
};

TEST_F(UcxPeersTest, ServesOverIpv6) {
  Serve({.host = "::1"});
  EXPECT_EQ(server_->address().substr(0, 6), "[::1]:");
  auto connection = Connect();
  ASSERT_NE(connection, nullptr);
  Settle(*connection);
}

TEST_F(UcxPeersTest, RefusesAnotherIncarnation) {
  Serve();
  const absl::Status status =
      FailedConnect({.address = server_->address(), .incarnation = kIncarnation + 1});
  EXPECT_EQ(ErrorCodeOf(status), ErrorCode::kStale) << status;
  EXPECT_NE(status.message().find(server_->address()), std::string::npos) << status;
  EXPECT_EQ(server_->Stats().connections_refused, 1u);
  EXPECT_EQ(server_->Stats().connections, 0u);
}

TEST_F(UcxPeersTest, SaysWhatIsWrongWithAnAddress) {
  Serve();
  const uint16_t port = ParseAddress(server_->address(), 0)->port;
  const absl::Status taken = ServeUcx({.host = "127.0.0.1", .port = port}, {}, authority_).status();
  EXPECT_EQ(ErrorCodeOf(taken), ErrorCode::kAlreadyExists) << taken;
  EXPECT_NE(taken.message().find("--ucx_address"), std::string::npos) << taken;
  EXPECT_NE(taken.message().find(absl::StrCat(port)), std::string::npos) << taken;
  const absl::Status name = ServeUcx({.host = "some.host"}, {}, authority_).status();
  EXPECT_EQ(ErrorCodeOf(name), ErrorCode::kInvalidArgument) << name;
  EXPECT_EQ(ErrorCodeOf(FailedConnect({.address = "127.0.0.1"})), ErrorCode::kInvalidArgument);
  EXPECT_EQ(ErrorCodeOf(FailedConnect({.address = "::1:x"})), ErrorCode::kInvalidArgument);
  EXPECT_EQ(ErrorCodeOf(FailedConnect({.address = "[fe80::1%lo]:1"})), ErrorCode::kInvalidArgument);
  server_.reset();
  const std::string address = absl::StrCat("127.0.0.1:", port);
  const absl::Status refused = FailedConnect({.address = address});
  EXPECT_EQ(ErrorCodeOf(refused), ErrorCode::kPeerLost) << refused;
  EXPECT_NE(refused.message().find(address), std::string::npos) << refused;
}

TEST_F(UcxPeersTest, ManyClientsComeAndGoAtOnce) {
  Serve();
  std::vector<std::thread> threads;
  threads.reserve(8);
  std::atomic<int> good{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, grant = authority_.Grant(1, Access::kRead)] {
      for (int round = 0; round < 5; ++round) {
        auto connection = Connect();
        Buffers buffers;
        buffers.Add({1, 1, 50'000});
        if (connection != nullptr && ReadAll(*connection, grant, buffers).ok() &&
            buffers.HoldPattern()) {
          ++good;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good.load(), 8 * 5);
  EXPECT_EQ(server_->Stats().connections_total, 8u * 5);
  EXPECT_TRUE(Eventually([&] { return server_->Stats().connections == 0; }));
}

TEST_F(UcxPeersTest, AServerThatStopsEndsWhatIsInFlight) {
  Serve();
  auto connection = Connect();
  Settle(*connection);
  EXPECT_TRUE(connection->Health().ok());
  server_.reset();
  EXPECT_TRUE(Eventually([&] { return !connection->Health().ok(); }));
  EXPECT_EQ(ErrorCodeOf(connection->Health()), ErrorCode::kPeerLost);
}

TEST_F(UcxPeersTest, BothSidesSleepWhenThereIsNothingToDo) {
  Serve();
  auto connection = Connect();
  Settle(*connection);
  auto cpu = [] {
    rusage usage;
    ::getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec * 1'000'000 + usage.ru_utime.tv_usec +
           usage.ru_stime.tv_sec * 1'000'000 + usage.ru_stime.tv_usec;
  };
  const auto before = cpu();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  // One spinning thread would have used 500,000 us.
  EXPECT_LT(cpu() - before, 50'000);
}

TEST_F(UcxPeersTest, AStoppedDaemonEndsBatchesAtTheirDeadlines) {
  ServerProcess server;
  auto connection = ConnectTo(server);
  ASSERT_NE(connection, nullptr);
  auto reader = ChildGrant(Access::kRead);
  server.Signal(SIGSTOP);
  Buffers buffers;
  for (uint32_t block = 0; block < kFrames; ++block) buffers.Add({block, 0, kFrameBytes});
  std::vector<std::byte> source(kFrameBytes);
  const WritePiece piece{{3, 0, kFrameBytes}, source.data()};
  const MonotonicTime start = Clock::Real().Now();
  auto read = connection->Read(reader, buffers.Pieces(), In(300));
  auto write = connection->Write(ChildGrant(Access::kWrite), {&piece, 1}, In(300));
  EXPECT_EQ(ErrorCodeOf(read->Wait()), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(ErrorCodeOf(write->Wait()), ErrorCode::kDeadlineExceeded);
  // A hang would be minutes.
  EXPECT_LT(Clock::Real().Now() - start, std::chrono::seconds(10));
  EXPECT_GE(Clock::Real().Now() - start, Millis(300));
  buffers.Fill();
  source.assign(source.size(), std::byte{1});
  server.Signal(SIGCONT);
  Buffers after;
  after.Add({7, 7, 400'000});
  const absl::Status status = ReadAll(*connection, reader, after);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(after.HoldPattern());
  EXPECT_TRUE(buffers.Untouched());
  EXPECT_EQ(connection->Stats().deadline, 2u);
}

TEST_F(UcxPeersTest, AStoppedDaemonIsNotConnectedTo) {
  ServerProcess server;
  server.Signal(SIGSTOP);
  const absl::Status status = FailedConnect(
      {.address = server.address(), .incarnation = kIncarnation, .connect_timeout = Millis(200)});
  EXPECT_EQ(ErrorCodeOf(status), ErrorCode::kPeerLost) << status;
  EXPECT_NE(status.message().find(server.address()), std::string::npos) << status;
}

TEST_F(UcxPeersTest, AKilledDaemonEndsEverything) {
  ServerProcess server;
  auto connection = ConnectTo(server);
  ASSERT_NE(connection, nullptr);
  auto reader = ChildGrant(Access::kRead);
  server.Signal(SIGSTOP);  // so that the batches are surely in flight
  std::vector<Buffers> buffers(100);
  std::vector<std::unique_ptr<Transfer>> transfers;
  for (Buffers& b : buffers) {
    b.Add({0, 0, 100'000});
    transfers.push_back(connection->Read(reader, b.Pieces(), In(60'000)));
  }
  server.Signal(SIGKILL);
  for (auto& transfer : transfers) {
    EXPECT_EQ(ErrorCodeOf(transfer->Wait()), ErrorCode::kPeerLost) << transfer->Wait();
  }
  EXPECT_EQ(ErrorCodeOf(connection->Health()), ErrorCode::kPeerLost);
  EXPECT_EQ(ErrorCodeOf(ReadAll(*connection, reader, buffers[0])), ErrorCode::kPeerLost);
  EXPECT_EQ(connection->Stats().failed, 101u);
}

TEST_F(UcxPeersTest, ADaemonRestartsOnItsPort) {
  auto first = std::make_unique<ServerProcess>();
  const uint16_t port = first->port();
  auto connection = ConnectTo(*first);
  ASSERT_NE(connection, nullptr);
  first.reset();
  ServerProcess second(port, kIncarnation + 1);
  ASSERT_EQ(second.port(), port);
  EXPECT_TRUE(Eventually([&] { return !connection->Health().ok(); }));
  EXPECT_EQ(ErrorCodeOf(FailedConnect({.address = second.address(), .incarnation = kIncarnation})),
            ErrorCode::kStale);
  EXPECT_TRUE(ConnectUcx({.address = second.address(), .incarnation = kIncarnation + 1}).ok());
}

}  // namespace
}  // namespace oasiskv::fabric::ucx

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "--serve") {
    return oasiskv::fabric::ucx::ServeMain(argv[2], argv[3]);
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
