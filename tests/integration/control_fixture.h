// A daemon in this process and raw stubs of its control plane.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "common/pause_point.h"
#include "tests/integration/control_stubs.h"
#include "tests/integration/mini_cluster.h"

namespace oasiskv::testing {

class ControlTest : public ::testing::Test {
 protected:
  void Start(std::vector<std::string> flags = {}) {
    flags.push_back("--fabrics=ucx");
    auto cluster = MiniCluster::Start({DaemonMode::kInProcess, 1, flags});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    stubs_ = std::make_unique<ControlStubs>(cluster_->daemon().addresses().control_address);
  }
  void TearDown() override { EXPECT_EQ(PausePoints::Waiting(), 0); }

  std::unique_ptr<MiniCluster> cluster_;
  std::unique_ptr<ControlStubs> stubs_;
};

}  // namespace oasiskv::testing
