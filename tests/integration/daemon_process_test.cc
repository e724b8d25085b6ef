// The daemon as a process: start, stop, taken ports, flags, signals.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/address.h"
#include "common/mapped_memory.h"
#include "tests/integration/control_stubs.h"
#include "tests/integration/eventually.h"
#include "tests/integration/http_get.h"
#include "tests/integration/mini_cluster.h"

namespace oasiskv::testing {
namespace {

namespace health = grpc::health::v1;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::unique_ptr<MiniCluster> StartCluster(std::vector<std::string> flags = {}) {
  auto cluster = MiniCluster::Start({DaemonMode::kProcess, 1, std::move(flags)});
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  return cluster.ok() ? *std::move(cluster) : nullptr;
}

// A listener of the test's own, which takes a port.
class TakenPort {
 public:
  TakenPort() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    auto any = Resolve({"127.0.0.1", 0});
    EXPECT_EQ(::bind(fd_.get(), any->get(), any->length), 0);
    EXPECT_EQ(::listen(fd_.get(), 1), 0);
    SocketAddress bound;
    bound.length = sizeof(bound.storage);
    ::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.length);
    address_ = bound.ToAddress().ToString();
  }
  const std::string& address() const { return address_; }

 private:
  const UniqueFd fd_;
  std::string address_;
};

TEST(DaemonProcessTest, ServesOnThePortsItAdvertisesAndStopsCleanly) {
  auto cluster = StartCluster({"--metrics_address=127.0.0.1:0"});
  ASSERT_NE(cluster, nullptr);
  const server::BoundAddresses bound = cluster->daemon().addresses();
  ControlStubs stubs(bound.control_address);
  EXPECT_EQ(stubs.Health(), health::HealthCheckResponse::SERVING);
  v1::DescribeResponse description;
  ASSERT_TRUE(stubs.Describe(&description).ok());
  ASSERT_EQ(description.endpoints_size(), 2);
  EXPECT_EQ(description.endpoints(0).fabric(), "shm");  // in the table's order
  for (const v1::Endpoint& endpoint : description.endpoints()) {
    EXPECT_EQ(endpoint.address(), bound.endpoint(endpoint.fabric()));
    EXPECT_FALSE(endpoint.address().empty());
  }
  EXPECT_EQ(description.incarnation(), cluster->daemon().incarnation());
  EXPECT_NE(ParseAddress(bound.endpoint("ucx"), 0)->port, 0);
  EXPECT_TRUE(HttpGet(bound.metrics_address, "/metrics").ok());
  EXPECT_TRUE(std::filesystem::exists(bound.endpoint("shm")));
  auto code = cluster->daemon().Stop();
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, 0);
  EXPECT_FALSE(std::filesystem::exists(bound.endpoint("shm")));
  EXPECT_FALSE(std::filesystem::exists(cluster->folder() + "/0.ready"));
}

TEST(DaemonProcessTest, ServesOverIpv6) {
  auto cluster = StartCluster({"--control_address=[::1]:0", "--ucx_address=[::1]:0"});
  ASSERT_NE(cluster, nullptr);
  EXPECT_THAT(cluster->daemon().addresses().control_address, HasSubstr("[::1]:"));
  EXPECT_THAT(cluster->daemon().addresses().endpoint("ucx"), HasSubstr("[::1]:"));
  ControlStubs stubs(cluster->daemon().addresses().control_address);
  const Outcome sealed = stubs.MakeSealed("s", 1);
  EXPECT_TRUE(sealed.ok()) << sealed;
}

TEST(DaemonProcessTest, ATakenPortEndsTheStartWithPortAndFlagAndNothingHalfStarted) {
  const std::vector<std::string> free = {"--control_address=127.0.0.1:0",
                                         "--metrics_address=127.0.0.1:0",
                                         "--ucx_address=127.0.0.1:0", "--pool_bytes=64MiB"};
  for (const char* flag : {"--control_address", "--metrics_address", "--ucx_address"}) {
    const TakenPort taken;
    char folder[] = "/tmp/oasiskv_taken_XXXXXX";
    ASSERT_NE(::mkdtemp(folder), nullptr);
    std::vector<std::string> command = {OasiskvdPath()};
    command.insert(command.end(), free.begin(), free.end());
    command.push_back(absl::StrCat(flag, "=", taken.address()));
    command.push_back(absl::StrCat("--shm_socket=", folder, "/s"));
    command.push_back(absl::StrCat("--ready_file=", folder, "/ready"));
    auto result = RunProcess(command);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->exit_code, 1) << flag;
    EXPECT_THAT(result->output,
                AllOf(HasSubstr(flag), HasSubstr(taken.address()), HasSubstr("in use")));
    EXPECT_TRUE(std::filesystem::is_empty(folder)) << flag;  // neither socket nor ready file
    ::rmdir(folder);
  }
}

TEST(DaemonProcessTest, ATakenSocketIsRefusedAndAStaleOneReplaced) {
  auto cluster = StartCluster();
  ASSERT_NE(cluster, nullptr);
  const std::string socket = cluster->daemon().addresses().endpoint("shm");
  auto second = RunProcess({OasiskvdPath(), "--control_address=127.0.0.1:0",
                            "--metrics_address=", "--ucx_address=127.0.0.1:0", "--pool_bytes=64MiB",
                            "--shm_socket=" + socket});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->exit_code, 1);
  EXPECT_THAT(second->output, AllOf(HasSubstr("--shm_socket"), HasSubstr(socket)));
  // The refused one has not taken the socket away from the first.
  ControlStubs stubs(cluster->daemon().addresses().control_address);
  EXPECT_EQ(stubs.Health(), health::HealthCheckResponse::SERVING);
  EXPECT_TRUE(std::filesystem::exists(socket));

  cluster->daemon().Kill();
  ASSERT_TRUE(std::filesystem::exists(socket));  // what a killed daemon leaves
  const absl::Status again = cluster->daemon().Start();
  EXPECT_TRUE(again.ok()) << again;
}

TEST(DaemonProcessTest, BadFlagsEndWithTwoAndAMessage) {
  for (const std::vector<std::string>& flags : {std::vector<std::string>{"--nosuch=1"},
                                                {"--pool_bytes=1GB"},
                                                {"stray"},
                                                {"--log_level=loud"},
                                                {"--flagfile=/nonexistent"},
                                                {"--pool_bytes"}}) {
    std::vector<std::string> command = {OasiskvdPath()};
    command.insert(command.end(), flags.begin(), flags.end());
    auto result = RunProcess(command);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->exit_code, 2) << flags[0];
    EXPECT_THAT(result->output, HasSubstr(flags[0].substr(0, flags[0].find('=')))) << flags[0];
  }
  for (const char* flag : {"--help", "--version", "--print_options"}) {
    auto result = RunProcess({OasiskvdPath(), flag});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->exit_code, 0) << flag;
    EXPECT_FALSE(result->output.empty()) << flag;
  }
}

TEST(DaemonProcessTest, APoolThatCannotBeHadEndsTheStart) {
  auto result =
      RunProcess({OasiskvdPath(), "--control_address=127.0.0.1:0",
                  "--metrics_address=", "--ucx_address=127.0.0.1:0", "--pool_bytes=100TiB"});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->exit_code, 1);
  EXPECT_THAT(result->output, HasSubstr("CAPACITY"));
}

TEST(DaemonProcessTest, TermWaitsForGrantsAndEndsWithTheLast) {
  auto cluster = StartCluster({"--drain_timeout=1h"});
  ASSERT_NE(cluster, nullptr);
  ControlStubs stubs(cluster->daemon().addresses().control_address);
  ASSERT_TRUE(stubs.MakeSealed("s", 1).ok());
  v1::AttachRequest request = AttachOf("s");
  request.set_lease_ms(60'000);
  v1::AttachResponse reader;
  ASSERT_TRUE(stubs.Attach(request, &reader).ok());
  ::kill(cluster->daemon().pid(), SIGTERM);
  ASSERT_EVENTUALLY(stubs.Health() == health::HealthCheckResponse::NOT_SERVING);
  v1::OpenResponse open;
  EXPECT_EQ(stubs.Open(OpenOf("late", 1), &open).code, ErrorCode::kDraining);
  v1::RenewResponse renewed;
  ASSERT_TRUE(stubs.Renew(reader.grant(), &renewed).ok());
  EXPECT_EQ(renewed.lost_size(), 0);
  ASSERT_TRUE(cluster->daemon().running());
  ASSERT_TRUE(stubs.Release(reader.grant()).ok());
  ASSERT_EVENTUALLY(!cluster->daemon().running());
}

TEST(DaemonProcessTest, TermGivesUpOnGrantsAfterTheTimeout) {
  auto cluster = StartCluster({"--drain_timeout=300ms"});
  ASSERT_NE(cluster, nullptr);
  ControlStubs stubs(cluster->daemon().addresses().control_address);
  v1::OpenRequest request = OpenOf("held", 1);
  request.set_lease_ms(600'000);
  v1::OpenResponse open;
  ASSERT_TRUE(stubs.Open(request, &open).ok());
  auto code = cluster->daemon().Stop();
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, 0);
}

TEST(DaemonProcessTest, ASecondSignalEndsItAtOnce) {
  auto cluster = StartCluster({"--drain_timeout=1h"});
  ASSERT_NE(cluster, nullptr);
  ControlStubs stubs(cluster->daemon().addresses().control_address);
  v1::OpenRequest request = OpenOf("held", 1);
  request.set_lease_ms(600'000);
  v1::OpenResponse open;
  ASSERT_TRUE(stubs.Open(request, &open).ok());
  ::kill(cluster->daemon().pid(), SIGINT);
  ASSERT_EVENTUALLY(stubs.Health() == health::HealthCheckResponse::NOT_SERVING);
  auto code = cluster->daemon().Stop();  // the second signal
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, 1);
}

// A daemon that was stopped counts only the time in which it served: the stop ends no lease.
TEST(DaemonProcessTest, AStoppedDaemonExpiresNobody) {
  auto cluster = StartCluster();
  ASSERT_NE(cluster, nullptr);
  ControlStubs stubs(cluster->daemon().addresses().control_address);
  v1::OpenRequest request = OpenOf("s", 1);
  request.set_lease_ms(2000);
  v1::OpenResponse open;
  ASSERT_TRUE(stubs.Open(request, &open).ok());
  ASSERT_TRUE(cluster->daemon().Pause().ok());
  // What is tested is this time: longer than the lease.
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  ASSERT_TRUE(cluster->daemon().Resume().ok());
  v1::RenewResponse renewed;
  ASSERT_TRUE(stubs.Renew(open.grant(), &renewed).ok());
  EXPECT_EQ(renewed.lost_size(), 0);
  EXPECT_TRUE(stubs.Commit(open.grant(), 2, 1).ok());
}

// When a decode worker dies before it attaches, the memory must not be lost for ever.
TEST(DaemonProcessTest, WhatNobodyAttachesGoesAndIsCounted) {
  auto cluster = StartCluster({"--unattended_ttl=300ms", "--metrics_address=127.0.0.1:0"});
  ASSERT_NE(cluster, nullptr);
  ControlStubs stubs(cluster->daemon().addresses().control_address);
  v1::OpenResponse open;  // attached before its seal, so that it is never alone
  ASSERT_TRUE(stubs.Open(OpenOf("attended", 2), &open).ok());
  v1::AttachRequest request = AttachOf("attended");
  request.set_lease_ms(600'000);
  v1::AttachResponse reader;
  ASSERT_TRUE(stubs.Attach(request, &reader).ok());
  ASSERT_TRUE(stubs.Commit(open.grant(), 2, 2).ok());
  ASSERT_TRUE(stubs.Seal(open.grant(), 32).ok());
  const uint64_t attended = stubs.Capacity().used_bytes();
  const auto ended = [&] {
    auto body = HttpGet(cluster->daemon().addresses().metrics_address, "/metrics");
    if (!body.ok()) return -1.0;
    return ParseMetrics(*body)["oasiskv_sequences_ended_total{reason=\"unattended\"}"];
  };

  ASSERT_TRUE(stubs.MakeSealed("alone", 3).ok());
  ASSERT_EVENTUALLY(stubs.Capacity().sequences_sealed() == 1);
  v1::AttachResponse late;
  EXPECT_EQ(stubs.Attach(AttachOf("alone"), &late).code, ErrorCode::kNotFound);
  EXPECT_EQ(stubs.Capacity().used_bytes(), attended);
  EXPECT_EQ(ended(), 1);
  EXPECT_TRUE(stubs.MakeSealed("alone", 1).ok()) << "the name is free";

  ASSERT_TRUE(stubs.Release(reader.grant()).ok());
  ASSERT_EVENTUALLY(stubs.Capacity().used_bytes() == 0);
  EXPECT_EQ(stubs.Attach(AttachOf("attended"), &late).code, ErrorCode::kNotFound);
  ASSERT_EVENTUALLY(ended() == 3);
}

TEST(DaemonProcessTest, ARestartOnTheSamePortMakesOldGrantsStale) {
  auto cluster = StartCluster();
  ASSERT_NE(cluster, nullptr);
  const std::string address = cluster->daemon().addresses().control_address;
  const uint64_t first_life = cluster->daemon().incarnation();
  v1::OpenResponse open;
  {
    ControlStubs stubs(address);
    ASSERT_TRUE(stubs.Open(OpenOf("s", 1), &open).ok());
  }
  const absl::Status restarted = cluster->daemon().Restart();
  ASSERT_TRUE(restarted.ok()) << restarted;
  EXPECT_EQ(cluster->daemon().addresses().control_address, address);
  EXPECT_NE(cluster->daemon().incarnation(), first_life);
  ControlStubs stubs(address);
  const Outcome outcome = stubs.Commit(open.grant(), 2, 1);
  EXPECT_EQ(outcome.code, ErrorCode::kStale) << outcome;
  v1::RenewResponse renewed;
  ASSERT_TRUE(stubs.Renew(open.grant(), &renewed).ok());
  ASSERT_EQ(renewed.lost_size(), 1);
  EXPECT_EQ(renewed.incarnation(), cluster->daemon().incarnation());
}

TEST(DaemonProcessTest, TwoDaemonsLiveBesideEachOther) {
  auto cluster = MiniCluster::Start({DaemonMode::kProcess, 2, {}});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_NE((*cluster)->daemon(0).incarnation(), (*cluster)->daemon(1).incarnation());
  for (int i = 0; i < 2; ++i) {
    ControlStubs stubs((*cluster)->daemon(i).addresses().control_address);
    EXPECT_TRUE(stubs.MakeSealed("same-name", 1).ok());
  }
}

}  // namespace
}  // namespace oasiskv::testing
