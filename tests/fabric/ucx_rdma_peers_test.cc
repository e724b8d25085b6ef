// The ucx fabric over RDMA lanes and other processes: daemons that are stopped or killed, writers
// that are killed.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <ucp/api/ucp.h>

#include <atomic>
#include <cstdio>
#include <cstring>

#include "common/address.h"
#include "common/fabric/ucx/worker.h"
#include "tests/fabric/ucx_rdma_fixture.h"
#include "tests/support/self_process.h"

namespace oasiskv::fabric::ucx {
namespace {

using ::testing::ElementsAre;

constexpr uint64_t kMailboxBytes = 4096;

// What a child says: its first word is set last.
struct Mailbox {
  std::atomic<uint32_t> full;
  char text[256];
};

// The descriptors of the parent's memory, as arguments and out of them.
std::vector<std::string> Shared(const std::string& role, const TestPool& pool, int mailbox) {
  std::vector<std::string> out = {role, absl::StrCat(::getpid())};
  for (size_t i = 0; i < verbs::kArenas + 1; ++i) out.push_back(absl::StrCat(pool.fd(i)));
  out.push_back(absl::StrCat(mailbox));
  return out;
}
UniqueFd Inherited(char** argv, size_t index) {
  return UniqueFd(
      ::open(absl::StrCat("/proc/", argv[2], "/fd/", argv[3 + index]).c_str(), O_RDWR | O_CLOEXEC));
}

void Say(Mailbox& mailbox, const std::string& text) {
  std::snprintf(mailbox.text, sizeof(mailbox.text), "%s", text.c_str());
  mailbox.full.store(1);
}

class UcxRdmaPeers : public UcxRdmaTest {
 protected:
  void SetUp() override {
    OASISKV_NEED_RXE();
    mailbox_fd_ = *CreateMemfd("mailbox", kMailboxBytes, PageKind::kNormal);
    mailbox_ = *Mapping::Map(mailbox_fd_.get(), kMailboxBytes, Protection::kReadWrite);
  }
  Mailbox& mailbox() { return *reinterpret_cast<Mailbox*>(mailbox_.data()); }
  // Starts a child and waits for what it says.
  std::string Start(const std::string& role, const std::vector<std::string>& more = {}) {
    mailbox().full.store(0);
    std::vector<std::string> arguments = Shared(role, pool_, mailbox_fd_.get());
    arguments.insert(arguments.end(), more.begin(), more.end());
    child_ = std::make_unique<testing::SelfProcess>(arguments);
    EXPECT_TRUE(Eventually([&] { return mailbox().full.load() != 0; }));
    return mailbox().text;
  }
  void Stop() {
    child_->Signal(SIGSTOP);
    ::waitpid(child_->pid(), nullptr, WUNTRACED);  // until every thread has stopped
  }

  UniqueFd mailbox_fd_;
  Mapping mailbox_;
  std::unique_ptr<testing::SelfProcess> child_;
};

// Its device answers by itself; what matters is that its words still count.
TEST_F(UcxRdmaPeers, AStoppedDaemonStillServesAndItsRevokedWordsStillCount) {
  address_ = Start("--daemon");
  auto connection = Connect();
  ASSERT_NE(connection, nullptr);
  Stop();
  const auto grant = pool_.Grant(1, Access::kRead);
  std::vector<std::byte> into;
  const auto pieces = Scattered(64, 8192, into);
  ASSERT_EQ(connection->Read(grant, pieces, Soon())->Wait(), absl::OkStatus());
  EXPECT_TRUE(Hold(pieces));
  const auto writer = pool_.Grant(2, Access::kWrite);
  const std::vector<WritePiece> put = {{{3, 0, 8192}, into.data()}};
  ASSERT_EQ(connection->Write(writer, put, Soon())->Wait(), absl::OkStatus());
  EXPECT_EQ(std::memcmp(pool_.frame(3), into.data(), 8192), 0);
  pool_.SetWord(grant->word_slot, RevokedWord(RevokeReason::kReleased, grant->epoch));
  EXPECT_EQ(ErrorCodeOf(connection->Read(grant, pieces, Soon())->Wait()), ErrorCode::kStale);
  connection->FenceWriter(writer->id);  // is not held up
  child_->Signal(SIGCONT);
}

TEST_F(UcxRdmaPeers, AKilledDaemonEndsEveryBatchAsPeerLost) {
  address_ = Start("--daemon");
  auto connection = Connect();
  ASSERT_NE(connection, nullptr);
  const auto grant = pool_.Grant(1, Access::kRead);
  std::vector<std::byte> into, second;
  const auto pieces = Scattered(kFrames, kFrameBytes, into);
  std::unique_ptr<Transfer> first;
  {
    const Silence silence;  // so that it is not over before the daemon is
    first = connection->Read(grant, pieces, Soon());
    child_->Kill();
    EXPECT_EQ(ErrorCodeOf(first->Wait()), ErrorCode::kPeerLost) << first->Wait();
  }
  std::fill(into.begin(), into.end(), std::byte{0x5a});
  EXPECT_EQ(ErrorCodeOf(connection->Health()), ErrorCode::kPeerLost);
  const auto more = Scattered(8, 8192, second);
  EXPECT_EQ(ErrorCodeOf(connection->Read(grant, more, Soon())->Wait()), ErrorCode::kPeerLost);
  // The next daemon gets a connection of its own.
  address_ = Start("--daemon");
  auto again = Connect();
  ASSERT_NE(again, nullptr);
  ASSERT_EQ(again->Read(grant, more, Soon())->Wait(), absl::OkStatus());
  EXPECT_TRUE(Hold(more));
  EXPECT_TRUE(Untouched(into));
}

TEST_F(UcxRdmaPeers, AnIdleConnectionNoticesThatTheDaemonIsGone) {
  address_ = Start("--daemon");
  auto connection = Connect();
  ASSERT_NE(connection, nullptr);
  child_->Kill();
  EXPECT_TRUE(Eventually([&] { return !connection->Health().ok(); }));
}

// No fence comes, but the end of its connection.
TEST_F(UcxRdmaPeers, AKilledWriterIsNoticed) {
  Serve();
  const std::string said = Start("--writer", {address_});
  ASSERT_EQ(said, "writes");
  ASSERT_EQ(authority_.opened().size(), 1u);
  EXPECT_TRUE(authority_.closed().empty());
  child_->Kill();
  ASSERT_TRUE(Eventually([&] { return !authority_.closed().empty(); }));
  EXPECT_THAT(authority_.closed(), ElementsAre(authority_.opened()[0]));
  EXPECT_TRUE(authority_.fenced().empty());
  EXPECT_TRUE(Eventually([&] { return server_->Stats().connections == 0; }));
}

TEST_F(UcxRdmaPeers, AStoppedWriterIsDisconnectedAllTheSame) {
  Serve();
  ASSERT_EQ(Start("--writer", {address_}), "writes");
  const ConnectionId id = authority_.opened().at(0);
  Stop();
  EXPECT_TRUE(server_->Close(id));
  ASSERT_TRUE(Eventually([&] { return !authority_.closed().empty(); }));
  EXPECT_THAT(authority_.closed(), ElementsAre(id));
  std::memset(pool_.frame(7), 0x11, kFrameBytes);
  child_->Signal(SIGCONT);
  EXPECT_TRUE(Eventually([&] { return !child_->running(); }));
  for (uint64_t i = 0; i < kFrameBytes; ++i) ASSERT_EQ(pool_.frame(7)[i], std::byte{0x11}) << i;
}

// Nobody fences for it, and it need not be in anybody's list.
TEST_F(UcxRdmaPeers, AClientThatIsKilledBeforeItJoinsIsForgotten) {
  Serve();
  ASSERT_EQ(Start("--half", {address_}), "was offered keys");
  EXPECT_EQ(server_->Stats().connections, 1u);
  child_->Kill();
  EXPECT_TRUE(Eventually([&] { return server_->Stats().connections == 0; }));
  EXPECT_TRUE(authority_.opened().empty());
}

TEST_F(UcxRdmaPeers, AClientThatNeverSaysWhetherItTakesKeysIsCutOff) {
  Serve();
  ASSERT_EQ(Start("--half", {address_}), "was offered keys");
  Stop();
  EXPECT_TRUE(Eventually([&] { return server_->Stats().connections == 0; }));
  EXPECT_TRUE(authority_.opened().empty());
}

// --- what children do ---

int RunDaemon(const TestPool& pool, Mailbox& mailbox) {
  UseDevice("rxe1");
  PoolAuthority authority(pool);
  auto server = ServeUcx({.host = "127.0.0.1"}, pool.Export(), authority);
  Say(mailbox, server.ok() ? (*server)->address() : server.status().ToString());
  char ignored;
  while (::read(STDIN_FILENO, &ignored, 1) > 0) {
  }
  return 0;
}

// Writes to frame 7 until its connection ends.
int RunWriter(TestPool& pool, Mailbox& mailbox, const std::string& address) {
  UseDevice("rxe0");
  auto connection = ConnectUcx({.address = address,
                                .incarnation = kIncarnation,
                                .connect_timeout = std::chrono::seconds(60)});
  if (!connection.ok()) {
    Say(mailbox, connection.status().ToString());
    return 1;
  }
  const auto grant = pool.Grant(1, Access::kWrite);
  const std::vector<std::byte> from(kFrameBytes, std::byte{0x77});
  const std::vector<WritePiece> put = {{{7, 0, kFrameBytes}, from.data()}};
  bool first = true;
  while ((*connection)->Write(grant, put, Soon())->Wait().ok()) {
    if (std::exchange(first, false)) Say(mailbox, "writes");
  }
  if (first) Say(mailbox, "cannot write");
  return 0;
}

// Takes part in the protocol up to the offer of keys, and no further.
class HalfClient : private ArrivalHandler {
 public:
  explicit HalfClient(const std::string& address)
      : worker_(*Worker::Create(*this, Worker::Family::kIpv4, Worker::RemoteMemory::kIfDevices)) {
    const SocketAddress socket_address = *Resolve(*ParseAddress(address, 0));
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR |
                        UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
    params.sockaddr.addr = socket_address.get();
    params.sockaddr.addrlen = socket_address.length;
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    ucp_ep_h endpoint = nullptr;
    if (ucp_ep_create(worker_->get(), &params, &endpoint) != UCS_OK) return;
    Hello hello;
    hello.incarnation = kIncarnation;
    worker_->Send(endpoint, std::make_unique<Message>(hello.head.id, &hello, sizeof(hello)),
                  Worker::Reply::kYes);
    Eventually([&] {
      while (worker_->Progress()) {
      }
      return offered_;
    });
  }
  bool offered() const { return offered_; }

 private:
  void OnArrival(const Arrival& arrival) override {
    HelloReply reply;
    offered_ = arrival.id == static_cast<unsigned>(MessageId::kHelloReply) &&
               ParseHeader(arrival.header.data(), arrival.header.size(), reply) &&
               reply.offers_keys != 0;
  }

  std::unique_ptr<Worker> worker_;
  bool offered_ = false;
};

int RunHalf(Mailbox& mailbox, const std::string& address) {
  UseDevice("rxe0");
  const HalfClient client(address);
  Say(mailbox, client.offered() ? "was offered keys" : "was offered none");
  while (true) ::pause();
}

int RunChild(int argc, char** argv) {
  constexpr size_t kFds = verbs::kArenas + 2;
  if (argc < static_cast<int>(3 + kFds)) return 2;
  std::vector<UniqueFd> fds;
  for (size_t i = 0; i + 1 < kFds; ++i) fds.push_back(Inherited(argv, i));
  const UniqueFd mailbox_fd = Inherited(argv, kFds - 1);
  TestPool pool(std::move(fds));
  const Mapping memory = *Mapping::Map(mailbox_fd.get(), kMailboxBytes, Protection::kReadWrite);
  auto& mailbox = *reinterpret_cast<Mailbox*>(memory.data());
  const std::string role = argv[1];
  if (role == "--daemon") return RunDaemon(pool, mailbox);
  if (argc <= static_cast<int>(3 + kFds)) return 2;
  const std::string address = argv[3 + kFds];
  return role == "--half" ? RunHalf(mailbox, address) : RunWriter(pool, mailbox, address);
}

}  // namespace

int ChildMain(int argc, char** argv) { return RunChild(argc, argv); }

}  // namespace oasiskv::fabric::ucx

// The test program is its own daemon and writer.
int main(int argc, char** argv) {
  const std::string role = argc > 1 ? argv[1] : "";
  if (role == "--daemon" || role == "--writer" || role == "--half")
    return oasiskv::fabric::ucx::ChildMain(argc, argv);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
