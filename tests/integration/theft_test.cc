// A stranger who knows the protocol seals a sequence without writing, to read what its frames held
// before: another tenant's KV (rule 7 of server/lease/README.md).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "common/clock.h"
#include "common/fabric/registry.h"
#include "common/wire/convert.h"
#include "tests/integration/control_stubs.h"
#include "tests/integration/mini_cluster.h"
#include "tests/support/shapes.h"

namespace oasiskv::testing {
namespace {

constexpr uint32_t kBlocks = 100;  // more than half of the pool

class TheftTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    auto cluster =
        MiniCluster::Start({DaemonMode::kProcess, 1, {"--pool_bytes=3MiB", "--slab_bytes=1MiB"}});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    stubs_ = std::make_unique<ControlStubs>(cluster_->daemon().addresses().control_address);
  }
  std::unique_ptr<fabric::Connection> Connect(fabric::Access access) {
    v1::DescribeResponse daemon;
    EXPECT_TRUE(stubs_->Describe(&daemon).ok());
    fabric::ConnectTarget target;
    target.control_address = stubs_->address;
    target.incarnation = daemon.incarnation();
    target.access = access;
    target.timeout = std::chrono::seconds(10);
    for (const v1::Endpoint& endpoint : daemon.endpoints()) {
      if (endpoint.fabric() == GetParam()) target.endpoint = {GetParam(), endpoint.address(), ""};
    }
    auto made = fabric::FindFabric(GetParam())->connect({}, target);
    EXPECT_TRUE(made.ok()) << made.status();
    return made.ok() ? *std::move(made) : nullptr;
  }
  v1::OpenResponse Open(const std::string& tenant, const fabric::Connection& writer) {
    v1::OpenRequest request = OpenOf("kv", kBlocks);
    request.mutable_identity()->set_tenant(tenant);
    request.set_writer_connection(writer.connection_id().value());
    v1::OpenResponse response;
    const Outcome outcome = stubs_->Open(request, &response);
    EXPECT_TRUE(outcome.ok()) << outcome;
    return response;
  }
  static std::shared_ptr<const fabric::GrantView> View(const v1::Grant& message,
                                                       fabric::Access access) {
    const wire::Grant g = wire::FromMessage(message);
    return std::make_shared<const fabric::GrantView>(fabric::GrantView{
        g.id, g.epoch, g.word_slot, access, Shape(2, 2, 64).frame_bytes(), g.frames});
  }
  static MonotonicTime Soon() { return Clock::Real().Now() + std::chrono::seconds(10); }

  std::unique_ptr<MiniCluster> cluster_;
  std::unique_ptr<ControlStubs> stubs_;
};

TEST_P(TheftTest, NobodyReadsAnotherTenantsOldBytes) {
  const uint32_t frame_bytes = Shape(2, 2, 64).frame_bytes();
  {
    const auto writer = Connect(fabric::Access::kWrite);
    ASSERT_NE(writer, nullptr);
    const v1::OpenResponse victim = Open("victim", *writer);
    const std::vector<std::byte> secret(frame_bytes, std::byte{0xAA});
    std::vector<fabric::WritePiece> pieces;
    for (uint32_t b = 0; b < kBlocks; ++b) pieces.push_back({{b, 0, frame_bytes}, secret.data()});
    ASSERT_EQ(writer->Write(View(victim.grant(), fabric::Access::kWrite), pieces, Soon())->Wait(),
              absl::OkStatus());
    writer->FenceWriter(GrantId(victim.grant().id()));
    ASSERT_TRUE(stubs_->Release(victim.grant()).ok());
  }
  const auto writer = Connect(fabric::Access::kWrite);
  ASSERT_NE(writer, nullptr);
  const v1::OpenResponse thief = Open("thief", *writer);
  const Outcome committed = stubs_->Commit(thief.grant(), 2, kBlocks);
  if (GetParam() == "ucx") {
    EXPECT_EQ(committed.code, ErrorCode::kNotCommitted) << committed;
    return;
  }
  // Over a mapping the daemon cannot see that nothing was written.
  ASSERT_TRUE(committed.ok()) << committed;
  ASSERT_TRUE(stubs_->Seal(thief.grant(), uint64_t{16} * kBlocks).ok());
  v1::AttachRequest request = AttachOf("kv");
  request.mutable_identity()->set_tenant("thief");
  v1::AttachResponse attached;
  ASSERT_TRUE(stubs_->Attach(request, &attached).ok());
  const auto reader = Connect(fabric::Access::kRead);
  ASSERT_NE(reader, nullptr);
  std::vector<std::byte> into(uint64_t{kBlocks} * frame_bytes, std::byte{1});
  std::vector<fabric::ReadPiece> pieces;
  for (uint32_t b = 0; b < kBlocks; ++b) {
    pieces.push_back({{b, 0, frame_bytes}, into.data() + uint64_t{b} * frame_bytes});
  }
  ASSERT_EQ(reader->Read(View(attached.grant(), fabric::Access::kRead), pieces, Soon())->Wait(),
            absl::OkStatus());
  EXPECT_TRUE(std::all_of(into.begin(), into.end(), [](std::byte b) { return b == std::byte{0}; }));
}

INSTANTIATE_TEST_SUITE_P(Fabrics, TheftTest, ::testing::Values("shm", "ucx"),
                         [](const auto& fabric) { return fabric.param; });

}  // namespace
}  // namespace oasiskv::testing
