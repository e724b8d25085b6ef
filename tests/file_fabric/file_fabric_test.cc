// A fabric that the tree does not know, through a daemon and the client library.
#include "tests/file_fabric/file_fabric.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "server/options/options.h"
#include "tests/integration/client_fixture.h"

namespace oasiskv::testing {
namespace {

using ::testing::HasSubstr;

class FileFabricTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { fabric::AddFabric(&FileFabric()); }
  void SetUp() override {
    auto cluster =
        MiniCluster::Start({.mode = DaemonMode::kInProcess, .flags = {"--fabrics=shm,file"}});
    ASSERT_OK(cluster.status());
    cluster_ = *std::move(cluster);
    auto writer = Connect("shm");
    ASSERT_OK(writer.status());
    writer_ = *std::move(writer);
    ASSERT_OK(Put(*writer_, "a", content_));
  }
  void TearDown() override { EXPECT_EQ(PausePoints::Waiting(), 0); }
  absl::StatusOr<std::unique_ptr<Client>> Connect(const std::string& fabric) const {
    ClientOptions options;
    options.address = cluster_->daemon().addresses().control_address;
    options.fabric = fabric;
    options.verify_checksums = true;
    return Client::Connect(options);
  }

  const Content content_{QwenLike(), 64, 1};
  std::unique_ptr<MiniCluster> cluster_;
  std::unique_ptr<Client> writer_;
};

TEST_F(FileFabricTest, IsServedDescribedAndRead) {
  auto client = Connect("file");
  ASSERT_OK(client.status());
  EXPECT_EQ((*client)->FabricName(), "file");
  EXPECT_THAT((*client)->Describe(), HasSubstr("(file, as asked)"));
  auto reader = (*client)->Attach(ReadSpecOf("a", content_.geometry()));
  ASSERT_OK(reader.status());
  EXPECT_FALSE(reader->local());
  std::vector<std::byte> into;
  const auto reads = AllEntries(content_, into);
  ASSERT_OK(reader->FetchEntries(reads, Soon())->Wait());
  EXPECT_TRUE(AllRight(content_, reads));
}

TEST_F(FileFabricTest, TheGrantWordIsReadAfterTheData) {
  auto client = Connect("file");
  ASSERT_OK(client.status());
  auto reader = (*client)->Attach(ReadSpecOf("a", content_.geometry()));
  ASSERT_OK(reader.status());
  PausePoints::Arm("file.before_grant_word");
  std::thread other([&] {
    EXPECT_TRUE(PausePoints::WaitReached("file.before_grant_word"));
    EXPECT_OK(writer_->Abort("a", TestIdentity(), "the reader has its data").status());
    PausePoints::Release("file.before_grant_word");
  });
  std::vector<std::byte> into;
  const absl::Status status = reader->FetchEntries(AllEntries(content_, into), Soon())->Wait();
  other.join();
  EXPECT_EQ(ErrorCodeOf(status), ErrorCode::kStale) << status;
}

TEST_F(FileFabricTest, WritersAreRefused) {
  auto client = Connect("file");
  ASSERT_OK(client.status());
  auto producer = (*client)->Open(SpecOf("b", content_));
  ASSERT_OK(producer.status());
  EXPECT_EQ(ErrorCodeOf(WriteAll(*producer, content_)), ErrorCode::kUnsupported);
}

TEST_F(FileFabricTest, IsOneOfTheTable) {
  auto taken = Connect("auto");
  ASSERT_OK(taken.status());
  EXPECT_EQ((*taken)->FabricName(), "shm");  // what was added last is preferred last
  EXPECT_THAT(std::string(Connect("rdma").status().message()),
              HasSubstr("auto, shm, verbs, ucx and file"));
  EXPECT_THAT(std::string(server::ParseCommandLine({"--fabrics=rdma"}).status().message()),
              HasSubstr("shm, verbs, ucx and file"));
}

}  // namespace
}  // namespace oasiskv::testing
