// Daemons that stop, die and restart under their clients, and clients that die under a daemon.
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "tests/integration/client_fixture.h"
#include "tests/support/self_process.h"

namespace oasiskv::testing {
namespace {

using ClientLossTest = ClientTest;
INSTANTIATE_OVER_FABRICS(ClientLossTest);

int PoolMappings() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:") != std::string::npos) ++count;
  }
  return count;
}

TEST_P(ClientLossTest, DaemonStoppedInMidFetch) {
  StartCluster(DaemonMode::kProcess);
  auto client = Connect();
  const Content content(QwenLike(), 1280, 1);
  ASSERT_OK(Put(*client, "a", content));
  ASSERT_OK_AND_ASSIGN(Reader reader, client->Attach(ReadSpecOf("a", QwenLike())));
  std::vector<std::byte> into;
  const std::vector<EntryRead> reads = AllEntries(content, into);
  ASSERT_OK(cluster_->daemon().Pause());
  auto fetch = reader.FetchEntries(reads, Clock::Real().Now() + std::chrono::milliseconds(400));
  const absl::Status status = fetch->Wait();
  if (GetParam() == "shm") {
    // One-sided: readers do not need the daemon's threads.
    EXPECT_OK(status);
    EXPECT_TRUE(AllRight(content, reads));
  } else {
    EXPECT_THAT(status, Fails(ErrorCode::kDeadlineExceeded));
    EXPECT_EQ(client->Stats().deadline_reads, 1u);
  }
  std::fill(into.begin(), into.end(), kBeforeFetch);
  ASSERT_OK(cluster_->daemon().Resume());
  // The answer to a later question comes after whatever was late.
  std::vector<std::byte> other;
  const std::vector<EntryRead> again = AllEntries(content, other);
  ASSERT_OK(reader.FetchEntries(again, Soon())->Wait());
  EXPECT_TRUE(AllRight(content, again));
  EXPECT_EQ(into, std::vector<std::byte>(into.size(), kBeforeFetch)) << "late data was written";
}

TEST_P(ClientLossTest, StoppedLongerThanTheLeaseAndContinued) {
  StartCluster(DaemonMode::kProcess);
  ClientOptions options = Options();
  options.lease = std::chrono::milliseconds(1000);
  auto client = Connect(options);
  const Content content(QwenLike(), 64, 1);
  ASSERT_OK(Put(*client, "a", content));
  ASSERT_OK_AND_ASSIGN(Reader reader, client->Attach(ReadSpecOf("a", QwenLike())));
  ASSERT_OK(cluster_->daemon().Pause());
  // A batch ends at the latest with the lease under which it began, and its error says so.
  std::vector<std::byte> cut_into;
  const absl::Status cut = reader.FetchEntries(AllEntries(content, cut_into), Soon())->Wait();
  if (GetParam() == "ucx") {
    EXPECT_THAT(cut, Fails(ErrorCode::kLeaseExpired));
  }
  // The holder's own clock suspends the grant; the daemon's does not run.
  ASSERT_EVENTUALLY(ErrorCodeOf(reader.Health()) == ErrorCode::kLeaseExpired);
  const auto stopped_enough = Clock::Real().Now() + 2 * options.lease;
  ASSERT_EVENTUALLY(Clock::Real().Now() > stopped_enough);
  std::vector<std::byte> into;
  const std::vector<EntryRead> reads = AllEntries(content, into);
  EXPECT_THAT(reader.FetchEntries(reads, Soon())->Wait(), Fails(ErrorCode::kLeaseExpired));
  EXPECT_EQ(into, std::vector<std::byte>(into.size(), kBeforeFetch));
  ASSERT_OK(cluster_->daemon().Resume());
  ASSERT_EVENTUALLY(reader.Health().ok());
  ASSERT_OK(reader.FetchEntries(reads, Soon())->Wait());
  EXPECT_TRUE(AllRight(content, reads));
  EXPECT_EQ(client->Stats().grants_lost, 0u);
}

TEST_P(ClientLossTest, DaemonKilledUnderOpenFetches) {
  StartCluster(DaemonMode::kProcess);
  auto client = Connect();
  const Content content(QwenLike(), 64, 1);
  ASSERT_OK(Put(*client, "a", content));
  {
    ASSERT_OK_AND_ASSIGN(Reader reader, client->Attach(ReadSpecOf("a", QwenLike())));
    // The fetches stay open where the daemon answers them.
    ASSERT_OK(cluster_->daemon().Pause());
    std::vector<std::vector<std::byte>> buffers(100);
    std::vector<std::unique_ptr<PendingFetch>> fetches;
    fetches.reserve(buffers.size());
    for (auto& buffer : buffers) {
      fetches.push_back(reader.FetchEntries(AllEntries(content, buffer), Soon()));
    }
    cluster_->daemon().Kill();
    for (auto& fetch : fetches) {
      const absl::Status status = fetch->Wait();
      if (GetParam() == "ucx") {
        EXPECT_THAT(status, Fails(ErrorCode::kPeerLost));
      }
    }
    ASSERT_EVENTUALLY(ErrorCodeOf(reader.Health()) == ErrorCode::kPeerLost);
    std::vector<std::byte> into;
    EXPECT_THAT(reader.FetchEntries(AllEntries(content, into), Soon())->Wait(),
                Fails(ErrorCode::kPeerLost));
    EXPECT_THAT(client->Health(), Fails(ErrorCode::kPeerLost));
  }
  // The pool is memory of this process too, until the last handle has gone.
  ASSERT_EVENTUALLY(PoolMappings() == 0);
}

TEST_P(ClientLossTest, RestartMakesOldHandlesStale) {
  StartCluster(DaemonMode::kProcess);
  auto client = Connect();
  const Geometry g = QwenLike();
  const Content old_content(g, 64, 1), new_content(g, 64, 2);
  ASSERT_OK(Put(*client, "a", old_content));
  ASSERT_OK_AND_ASSIGN(Reader old_reader, client->Attach(ReadSpecOf("a", g)));
  ASSERT_OK_AND_ASSIGN(Producer old_producer, client->Open(SpecOf("b", old_content)));
  ASSERT_OK(cluster_->daemon().Restart());
  ASSERT_OK(Put(*client, "a", new_content));
  EXPECT_EQ(client->Stats().reconnects, 1u);
  std::vector<std::byte> into(g.entry_bytes(), kBeforeFetch);
  const EntryRead read{BlockIndex(0), LayerIndex(0), HeadIndex(0), into.data()};
  EXPECT_THAT(old_reader.FetchEntries({&read, 1}, Soon())->Wait(), Fails(ErrorCode::kStale));
  EXPECT_THAT(old_reader.Health(), Fails(ErrorCode::kStale));
  EXPECT_EQ(into, std::vector<std::byte>(into.size(), kBeforeFetch));
  EXPECT_THAT(old_producer.WriteTokens(LayerIndex(0), 0, 16, old_content.Keys(0, 0),
                                       old_content.Values(0, 0)),
              Fails(ErrorCode::kStale));
  EXPECT_THAT(old_producer.Commit(LayerIndex(0), 1, BlockIndex(0), 1),
              Fails(ErrorCode::kNotCommitted));
  EXPECT_OK(old_reader.Release());
  ASSERT_OK_AND_ASSIGN(Reader reader, client->Attach(ReadSpecOf("a", g)));
  ASSERT_OK(reader.FetchEntries({&read, 1}, Soon())->Wait());
  EXPECT_EQ(into, new_content.Entry(0, 0, 0));
}

// gRPC reconnects by itself, so an attach that was begun on the old daemon's session may be
// answered by its successor. Such a grant must not be read through the mappings of the dead pool.
TEST_P(ClientLossTest, AnswerOfTheSuccessorMakesANewSession) {
  StartCluster(DaemonMode::kProcess);
  auto client = Connect();
  const Geometry g = QwenLike();
  const Content old_content(g, 64, 1), new_content(g, 64, 2);
  ASSERT_OK(Put(*client, "a", old_content));
  PausePoints::Arm("client.session.call");
  absl::StatusOr<Reader> reader = absl::UnknownError("");
  std::thread attach([&] { reader = client->Attach(ReadSpecOf("a", g)); });
  ASSERT_TRUE(PausePoints::WaitReached("client.session.call"));
  ASSERT_OK(cluster_->daemon().Restart());
  ASSERT_OK(Put(*Connect(), "a", new_content));
  PausePoints::Release("client.session.call");
  attach.join();
  ASSERT_OK(reader.status());
  std::vector<std::byte> into;
  const std::vector<EntryRead> reads = AllEntries(new_content, into);
  ASSERT_OK(reader->FetchEntries(reads, Soon())->Wait());
  EXPECT_TRUE(AllRight(new_content, reads));
}

// Without an open or attach, the keeper finds out that the daemon was restarted.
TEST_P(ClientLossTest, KeeperLearnsOfTheRestart) {
  StartCluster(DaemonMode::kProcess);
  auto client = Connect();
  ASSERT_OK(Put(*client, "a", Content(QwenLike(), 64, 1)));
  ASSERT_OK_AND_ASSIGN(Reader reader, client->Attach(ReadSpecOf("a", QwenLike())));
  ASSERT_OK(cluster_->daemon().Restart());
  ASSERT_EVENTUALLY(ErrorCodeOf(reader.Health()) == ErrorCode::kStale);
}

TEST_P(ClientLossTest, ThreadsFetchWhileTheDaemonRestarts) {
  StartCluster(DaemonMode::kProcess);
  auto client = Connect();
  const Geometry g = QwenLike();
  const Content content(g, 64, 1);
  ASSERT_OK(Put(*client, "a", content));
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0}, round{0};
  std::vector<std::atomic<int>> last_ok(8);
  std::vector<std::thread> threads;
  threads.reserve(8);
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      while (!stop) {
        const int now = round;
        auto reader = client->Attach(ReadSpecOf("a", g));
        if (!reader.ok()) continue;
        std::vector<std::byte> into;
        const std::vector<EntryRead> reads = AllEntries(content, into);
        while (!stop && reader->FetchEntries(reads, Soon())->Wait().ok()) {
          if (!AllRight(content, reads)) ++wrong;
          last_ok[t] = now;
          if (round != now) break;
        }
      }
    });
  }
  for (int r = 1; r <= 10; ++r) {
    ASSERT_OK(cluster_->daemon().Restart());
    // The session may meet the old daemon's end in the middle of a call: the user's retry.
    ASSERT_TRUE(Eventually([&] {
      const absl::Status put = Put(*client, "a", content);
      return put.ok() || ErrorCodeOf(put) == ErrorCode::kAlreadyExists;
    }));
    round = r;
    for (auto& last : last_ok) ASSERT_EVENTUALLY(last == r);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GE(client->Stats().reconnects, 10u);
}

// What the killed client of the next test does.
int HoldGrants(const std::string& address, const std::string& fabric) {
  ClientOptions options;
  options.address = address;
  options.fabric = fabric;
  options.lease = std::chrono::milliseconds(1500);
  auto client = Client::Connect(options);
  if (!client.ok()) return 2;
  std::vector<Reader> readers;
  for (int i = 0; i < 95; ++i) {
    auto reader = (*client)->Attach(ReadSpecOf("a", QwenLike()));
    if (!reader.ok()) return 3;
    readers.push_back(*std::move(reader));
  }
  std::vector<Producer> producers;
  const Content content(QwenLike(), 64, 3);
  for (int i = 0; i < 5; ++i) {
    auto producer = (*client)->Open(SpecOf(absl::StrCat("w", i), content));
    if (!producer.ok() || !WriteAll(*producer, content).ok()) return 4;
    producers.push_back(*std::move(producer));
  }
  while (true) ::pause();
}

TEST_P(ClientLossTest, KilledClientsGrantsComeBack) {
  StartCluster();
  auto client = Connect();
  const Content content(QwenLike(), 64, 1);
  ASSERT_OK(Put(*client, "a", content));
  const uint64_t used = Capacity().used_bytes;
  server::KvCore& core = *cluster_->daemon().daemon()->core();
  const uint64_t expired = core.Counters().grants_expired;

  const std::string address = cluster_->daemon().addresses().control_address;
  const std::string fabric = GetParam();
  SelfProcess holder({"--hold_grants", address, fabric});
  ASSERT_EVENTUALLY(Capacity().grants_reader == 95 && Capacity().grants_writer == 5);
  EXPECT_GT(Capacity().used_bytes, used);
  holder.Kill();
  ASSERT_EQ(holder.exit_code(), -SIGKILL);
  ASSERT_EVENTUALLY(Capacity().grants_reader == 0 && Capacity().grants_writer == 0);
  ASSERT_EVENTUALLY(Capacity().used_bytes == used && Capacity().quarantined_bytes == 0);
  EXPECT_EQ(core.Counters().grants_expired - expired, 100u);
}

}  // namespace

int ChildMain(int argc, char** argv) {
  if (argc != 4) return 1;
  return HoldGrants(argv[2], argv[3]);
}

}  // namespace oasiskv::testing

// The test program is its own client that gets killed.
int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "--hold_grants") {
    return oasiskv::testing::ChildMain(argc, argv);
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
