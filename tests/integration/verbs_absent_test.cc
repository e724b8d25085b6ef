// verbs when it is not possible: no device of that name, or a daemon that does not serve it.
#include "common/fabric/verbs/verbs.h"
#include "tests/integration/client_fixture.h"

namespace oasiskv::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kNoDevice[] = "nosuch0";

class VerbsAbsent : public ::testing::Test {
 protected:
  void Start() {
    auto cluster = MiniCluster::Start({.mode = DaemonMode::kInProcess, .flags = {}});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
  }
  absl::StatusOr<std::unique_ptr<Client>> Connect(const std::string& fabric,
                                                  const std::string& device) const {
    ClientOptions options;
    options.address = cluster_->daemon().addresses().control_address;
    options.fabric = fabric;
    options.verbs_device = device;
    return Client::Connect(options);
  }
  std::unique_ptr<MiniCluster> cluster_;
};

TEST_F(VerbsAbsent, ADaemonThatIsToServeItDoesNotStartAndListsTheDevices) {
  const auto result = RunProcess(
      {OasiskvdPath(), "--control_address=127.0.0.1:0", "--metrics_address=", "--fabrics=shm,verbs",
       "--shm_socket=/tmp/oasiskv-absent.sock", std::string("--verbs_device=") + kNoDevice,
       "--pool_bytes=64MiB"});
  ASSERT_OK(result.status());
  EXPECT_EQ(result->exit_code, 1);
  EXPECT_THAT(result->output, AllOf(HasSubstr("--fabrics names verbs"), HasSubstr(kNoDevice),
                                    HasSubstr("devices seen: ")));
}

TEST_F(VerbsAbsent, AClientThatAsksForItIsToldTheDevicesAndGetsNoOther) {
  Start();
  const absl::Status status = Connect("verbs", kNoDevice).status();
  EXPECT_THAT(status, Fails(ErrorCode::kUnsupported));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("fabric verbs was asked"), HasSubstr(kNoDevice),
                    HasSubstr("devices seen: ")));
}

TEST_F(VerbsAbsent, AClientWithADeviceIsToldWhatTheDaemonServes) {
  Start();
  const absl::Status status = Connect("verbs", "").status();
  EXPECT_THAT(status, Fails(ErrorCode::kUnsupported));
  const bool device = fabric::CheckVerbsPort({}).ok();
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(device ? "does not serve verbs but shm and ucx" : "devices seen: "));
}

TEST_F(VerbsAbsent, AutoDoesWithoutAndSaysSo) {
  auto cluster = MiniCluster::Start({.mode = DaemonMode::kInProcess, .flags = {"--fabrics=ucx"}});
  ASSERT_OK(cluster.status());
  cluster_ = *std::move(cluster);
  auto client = Connect("auto", kNoDevice);
  ASSERT_OK(client.status());
  EXPECT_EQ((*client)->FabricName(), "ucx");
  EXPECT_THAT((*client)->Describe(),
              HasSubstr("because the daemon does not serve shm; the daemon does not serve verbs"));
}

TEST_F(VerbsAbsent, OptionsOutOfRangeAreRefused) {
  Start();
  ClientOptions options;
  options.address = cluster_->daemon().addresses().control_address;
  options.verbs_gid_index = -2;
  EXPECT_THAT(Client::Connect(options).status(), Fails(ErrorCode::kInvalidArgument));
  options.verbs_gid_index = -1;
  options.verbs_port = 256;
  EXPECT_THAT(Client::Connect(options).status(), Fails(ErrorCode::kInvalidArgument));
}

}  // namespace
}  // namespace oasiskv::testing
