// The whole way over ucx and RDMA lanes: a daemon process on rxe1, the client library on rxe0.
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "oasiskv/v1/admin.grpc.pb.h"
#include "oasiskv/v1/admin.pb.h"
#include "tests/fabric/held_writer.h"
#include "tests/fabric/soak_process.h"
#include "tests/integration/client_fixture.h"
#include "tests/integration/http_get.h"
#include "tests/support/self_process.h"

namespace oasiskv::testing {
namespace {

using std::chrono::seconds;

constexpr std::byte kUntouched{0x5A};
// Devices and processors are emulated.
constexpr seconds kPatience{120};

// For the next process, or the next worker of this one.
void UseDevice(const char* device) {
  ::setenv("UCX_NET_DEVICES", absl::StrCat(device, ":1,lo").c_str(), 1);
  ::setenv("UCX_UD_VERBS_ETH_DGID_CHECK", "n", 1);
}

ClientOptions OptionsFor(const std::string& address) {
  ClientOptions options;
  options.address = address;
  options.fabric = FabricChoice::kUcx;
  options.rpc_timeout = seconds(30);
  options.read_timeout = seconds(60);
  return options;
}

class UcxRdmaServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* device : {"rxe0", "rxe1"}) {
      if (!std::filesystem::exists(absl::StrCat("/sys/class/infiniband/", device))) {
        GTEST_SKIP() << "needs the soft-RoCE devices rxe0 and rxe1; run the test through "
                        "tests/fabric/in-rdma-guest";
      }
    }
  }
  void StartDaemon(std::vector<std::string> flags = {}) {
    UseDevice("rxe1");
    MiniClusterOptions options;
    options.flags = {"--fabrics=ucx", "--metrics_address=127.0.0.1:0"};
    options.flags.insert(options.flags.end(), flags.begin(), flags.end());
    auto cluster = MiniCluster::Start(options);
    UseDevice("rxe0");
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
  }
  std::string address() const { return cluster_->daemon().addresses().control_address; }
  double Metric(const std::string& series) const {
    const auto text = HttpGet(cluster_->daemon().addresses().metrics_address, "/metrics");
    EXPECT_TRUE(text.ok()) << text.status();
    const auto metrics = ParseMetrics(text.ok() ? *text : "");
    const auto found = metrics.find(series);
    return found == metrics.end() ? -1 : found->second;
  }
  v1::GetCapacityResponse Capacity() const {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    v1::GetCapacityResponse response;
    const auto admin =
        v1::Admin::NewStub(grpc::CreateChannel(address(), grpc::InsecureChannelCredentials()));
    const grpc::Status status = admin->GetCapacity(&context, v1::GetCapacityRequest(), &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  bool Idle() const {
    const v1::GetCapacityResponse capacity = Capacity();
    return capacity.pool_bytes() != 0 && capacity.used_bytes() == 0;
  }
  // put, commit, seal, attach, fetch, compare, release.
  void GoRound(Client& client) {
    const Content content(QwenLike(), 5 * 16 + 3, 1);
    ProducerSpec spec = SpecOf("a", content);
    spec.checksums = true;
    ASSERT_OK(Put(client, spec, content));
    auto reader = client.Attach(ReadSpecOf("a", content.geometry()));
    ASSERT_OK(reader.status());
    const Geometry& g = content.geometry();
    std::vector<std::byte> into(
        uint64_t{content.blocks()} * g.layers * g.kv_heads * g.entry_bytes(), kUntouched);
    std::vector<EntryRead> reads;
    for (uint32_t b = 0; b < content.blocks(); ++b) {
      for (uint32_t l = 0; l < g.layers; ++l) {
        for (uint32_t h = 0; h < g.kv_heads; ++h) {
          reads.push_back({BlockIndex(b), LayerIndex(l), HeadIndex(h),
                           into.data() + reads.size() * g.entry_bytes()});
        }
      }
    }
    ASSERT_OK(reader->FetchEntries(reads, reader->DefaultDeadline())->Wait());
    for (const EntryRead& r : reads) {
      const auto want = content.Entry(r.block.value(), r.layer.value(), r.head.value());
      ASSERT_EQ(std::memcmp(r.into, want.data(), want.size()), 0);
    }
    EXPECT_EQ(client.Stats().checksums_verified, reads.size());
    ASSERT_OK(reader->Release());
    ASSERT_OK(client.ReleaseSequences({"a"}, TestIdentity()).status());
    EXPECT_TRUE(Eventually([&] { return Idle(); }, kPatience));
  }

  std::unique_ptr<MiniCluster> cluster_;
};

constexpr char kOneSided[] =
    "oasiskv_fabric_transport_connections{fabric=\"ucx\",transport=\"rc_verbs\",access=\"one_"
    "sided\"}";

TEST_F(UcxRdmaServiceTest, PutCommitAttachFetchReleaseOneSided) {
  StartDaemon();
  ClientOptions options = OptionsFor(address());
  options.verify_checksums = true;
  auto client = Client::Connect(options);
  ASSERT_OK(client.status());
  EXPECT_THAT((*client)->Describe(), ::testing::HasSubstr("rc_verbs/rxe0:1, one-sided"));
  EXPECT_EQ(Metric(kOneSided), 1);
  GoRound(**client);
  EXPECT_EQ(Metric("oasiskv_fabric_read_bytes_total{fabric=\"ucx\"}"), 0);
  EXPECT_EQ(Metric("oasiskv_fabric_written_bytes_total{fabric=\"ucx\"}"), 0);
  client->reset();
  EXPECT_TRUE(Eventually([&] { return Metric(kOneSided) == 0; }, kPatience));
}

TEST_F(UcxRdmaServiceTest, WithoutTheFlagTheDaemonAnswersEveryRequest) {
  StartDaemon({"--ucx_rdma=false"});
  ClientOptions options = OptionsFor(address());
  options.verify_checksums = true;
  auto client = Client::Connect(options);
  ASSERT_OK(client.status());
  EXPECT_THAT((*client)->Describe(), ::testing::HasSubstr("active messages"));
  GoRound(**client);
  EXPECT_GT(Metric("oasiskv_fabric_read_bytes_total{fabric=\"ucx\"}"), 0);
  EXPECT_GT(Metric("oasiskv_fabric_written_bytes_total{fabric=\"ucx\"}"), 0);
}

TEST_F(UcxRdmaServiceTest, AKilledWriterReturnsItsMemory) {
  StartDaemon({"--fence_timeout=60s"});
  testing::SelfProcess writer({"--hold_writer", address()});
  ASSERT_TRUE(Eventually([&] { return Capacity().grants_writer() == 1; }, kPatience));
  writer.Kill();
  ASSERT_TRUE(Eventually([&] { return Idle(); }, kPatience));
}

// Its device goes on answering, so that only the missing fence gives it away.
TEST_F(UcxRdmaServiceTest, AStoppedWriterIsDisconnectedAndItsMemoryReturns) {
  StartDaemon({"--fence_timeout=1s"});
  testing::SelfProcess writer({"--hold_writer", address()});
  ASSERT_TRUE(Eventually([&] { return Capacity().grants_writer() == 1; }, kPatience));
  ASSERT_TRUE(writer.Signal(SIGSTOP));
  ASSERT_TRUE(Eventually([&] { return Capacity().quarantined_bytes() > 0; }, kPatience));
  ASSERT_TRUE(Eventually([&] { return Idle(); }, kPatience));
}

TEST_F(UcxRdmaServiceTest, AKilledDaemonIsLostAndItsSuccessorIsFoundAgain) {
  StartDaemon();
  const Content content(QwenLike(), 64, 1);
  auto client = Client::Connect(OptionsFor(address()));
  ASSERT_OK(client.status());
  ASSERT_OK(Put(**client, "a", content));
  auto reader = (*client)->Attach(ReadSpecOf("a", content.geometry()));
  ASSERT_OK(reader.status());
  std::vector<std::byte> into(content.geometry().entry_bytes());
  const EntryRead read{BlockIndex(0), LayerIndex(0), HeadIndex(0), into.data()};
  const auto fetch = [&](Reader& from) {
    return from.FetchEntries({&read, 1}, from.DefaultDeadline())->Wait();
  };
  EXPECT_OK(fetch(*reader));
  cluster_->daemon().Kill();
  EXPECT_THAT(fetch(*reader), Fails(ErrorCode::kPeerLost));
  UseDevice("rxe1");
  ASSERT_OK(cluster_->daemon().Start());
  UseDevice("rxe0");
  ASSERT_OK(Put(**client, "a", content));
  EXPECT_THAT(fetch(*reader), Fails(ErrorCode::kStale));
  auto again = (*client)->Attach(ReadSpecOf("a", content.geometry()));
  ASSERT_OK(again.status());
  ASSERT_OK(fetch(*again));
}

// UCX fills its pools when the first client comes, and keeps them; what comes after adds nothing.
TEST_F(UcxRdmaServiceTest, ClientsThatComeAndGoLeaveNothing) {
  constexpr int kRounds = 4, kClients = 5;
  constexpr seconds kQueuePairsGone{30};
  constexpr int64_t kMoreKib = 4 << 10;
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  ASSERT_EQ(::setenv("LD_PRELOAD", (folder / "liblast_wqe_event.so").c_str(), 1), 0);
  StartDaemon({"--fence_timeout=60s"});
  ASSERT_EQ(::unsetenv("LD_PRELOAD"), 0);
  const pid_t daemon = cluster_->daemon().pid();
  const auto round = [&] {
    for (int i = 0; i < kClients; ++i) {
      auto client = Client::Connect(OptionsFor(address()));
      ASSERT_OK(client.status());
      EXPECT_THAT((*client)->Describe(), ::testing::HasSubstr("one-sided"));
    }
    testing::SelfProcess writer({"--hold_writer", address()});
    ASSERT_TRUE(Eventually([&] { return Capacity().grants_writer() == 1; }, kPatience));
    writer.Kill();
    ASSERT_TRUE(Eventually([&] { return Idle() && Metric(kOneSided) == 0; }, kPatience));
  };
  const int64_t queue_pairs = RdmaResources()["rxe1 qp"];
  round();
  ASSERT_TRUE(
      Eventually([&] { return RdmaResources()["rxe1 qp"] == queue_pairs; }, kQueuePairsGone))
      << RdmaResources()["rxe1 qp"] << " queue pairs, before any client came " << queue_pairs;
  const std::map<std::string, int64_t> filled = RdmaResources();
  const ProcessFigures first = FiguresOf(daemon);
  for (int i = 0; i < kRounds && !HasFatalFailure(); ++i) round();
  EXPECT_TRUE(Eventually([&] { return RdmaResources() == filled; }, kQueuePairsGone))
      << ::testing::PrintToString(RdmaResources()) << ", after the first clients "
      << ::testing::PrintToString(filled);
  const ProcessFigures last = FiguresOf(daemon);
  std::printf("daemon: %ld KiB after %d clients, %ld KiB and %ld memory regions after %d\n",
              static_cast<long>(first.kib), kClients + 1, static_cast<long>(last.kib),
              static_cast<long>(filled.at("rxe1 mr")), (kRounds + 1) * (kClients + 1));
  EXPECT_LE(last.kib, first.kib + kMoreKib);
}

}  // namespace

int ChildMain(int argc, char** argv) {
  UseDevice("rxe0");
  return argc == 3 ? HoldWriter(OptionsFor(argv[2])) : 1;
}

}  // namespace oasiskv::testing

// The test program is its own writer that gets killed.
int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "--hold_writer") {
    return oasiskv::testing::ChildMain(argc, argv);
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
