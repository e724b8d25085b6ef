// An oasiskvd process on rxe1 and clients of the library on rxe0.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/fabric/verbs/verbs.h"
#include "tests/integration/client_fixture.h"
#include "tests/integration/control_stubs.h"

namespace oasiskv::testing {

// Devices and processors are emulated.
inline constexpr std::chrono::seconds kPatience{120};

inline ClientOptions OptionsFor(const std::string& address) {
  ClientOptions options;
  options.address = address;
  options.fabric = "verbs";
  options.verbs_device = "rxe0";
  options.verbs_peer_timeout = std::chrono::seconds(3);
  options.rpc_timeout = std::chrono::seconds(30);
  options.read_timeout = std::chrono::seconds(60);
  return options;
}

class VerbsServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* device : {"rxe0", "rxe1"}) {
      if (!fabric::CheckVerbsPort({.device = device}).ok()) {
        GTEST_SKIP() << "needs the soft-RoCE devices rxe0 and rxe1; run the test through "
                        "tests/fabric/in-rdma-guest";
      }
    }
    StartDaemon({"--fabrics=verbs", "--fence_timeout=60s"});
  }
  void StartDaemon(std::vector<std::string> flags) {
    cluster_.reset();
    MiniClusterOptions options;
    options.flags = std::move(flags);
    options.flags.push_back("--verbs_device=rxe1");
    auto cluster = MiniCluster::Start(options);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
  }

  std::string address() const { return cluster_->daemon().addresses().control_address; }
  std::unique_ptr<Client> Connect() const {
    auto client = Client::Connect(OptionsFor(address()));
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }
  v1::GetCapacityResponse Capacity() const { return ControlStubs(address()).Capacity(); }
  bool Idle() const {
    const v1::GetCapacityResponse capacity = Capacity();
    return capacity.pool_bytes() != 0 && capacity.used_bytes() == 0;
  }

  std::unique_ptr<MiniCluster> cluster_;
};

inline absl::Status Fetch(Reader& reader, std::span<const EntryRead> reads) {
  return reader.FetchEntries(reads, reader.DefaultDeadline())->Wait();
}

}  // namespace oasiskv::testing
