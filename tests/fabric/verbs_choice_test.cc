// Which fabric a client takes where there are RDMA devices, and what the daemon's memory lies on.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "tests/fabric/verbs_service_fixture.h"

namespace oasiskv::testing {
namespace {

// A daemon that serves shm would be taken for one on this host.
TEST_F(VerbsServiceTest, AutoTakesVerbsBeforeUcxAndSaysWhy) {
  StartDaemon({"--fabrics=ucx,verbs"});
  ClientOptions options = OptionsFor(address());
  options.fabric = "auto";
  auto client = Client::Connect(options);
  ASSERT_OK(client.status());
  EXPECT_EQ((*client)->FabricName(), "verbs");
  EXPECT_THAT((*client)->Describe(),
              ::testing::AllOf(::testing::HasSubstr("verbs on rxe0"),
                               ::testing::HasSubstr("because the daemon does not serve shm")));
  const Content content(QwenLike(), 64, 1);
  ASSERT_OK(Put(**client, "a", content));
  auto reader = (*client)->Attach(ReadSpecOf("a", content.geometry()));
  ASSERT_OK(reader.status());
  std::vector<std::byte> into;
  const auto reads = AllEntries(content, into);
  ASSERT_OK(Fetch(*reader, reads));
  EXPECT_TRUE(AllRight(content, reads));

  options.verbs_device = "nosuch0";
  auto other = Client::Connect(options);
  ASSERT_OK(other.status());
  EXPECT_EQ((*other)->FabricName(), "ucx");
  EXPECT_THAT((*other)->Describe(),
              ::testing::AllOf(::testing::HasSubstr("nosuch0"), ::testing::HasSubstr("rxe0"),
                               ::testing::HasSubstr("rxe1")));
}

// What UCX may use in the process, or connection, that is started next: one device, and TCP on this
// machine.
void UseUcxDevice(const char* device) {
  ::setenv("UCX_NET_DEVICES", absl::StrCat(device, ":1,lo").c_str(), 1);
}

TEST_F(VerbsServiceTest, UcxMessagesGoOverRdmaLanesToo) {
  UseUcxDevice("rxe1");
  StartDaemon({"--fabrics=ucx"});
  UseUcxDevice("rxe0");
  ClientOptions options = OptionsFor(address());
  options.fabric = "ucx";
  auto client = Client::Connect(options);
  ::unsetenv("UCX_NET_DEVICES");
  ASSERT_OK(client.status());
  EXPECT_THAT((*client)->Describe(), ::testing::HasSubstr("rc_verbs/rxe0:1"));
  const Content content(QwenLike(), 64, 1);
  ASSERT_OK(Put(**client, "a", content));
  auto reader = (*client)->Attach(ReadSpecOf("a", content.geometry()));
  ASSERT_OK(reader.status());
  std::vector<std::byte> into;
  const auto reads = AllEntries(content, into);
  ASSERT_OK(Fetch(*reader, reads));
  EXPECT_TRUE(AllRight(content, reads));
}

TEST_F(VerbsServiceTest, AutoStaysOnTheHostWhereItCan) {
  StartDaemon({"--fabrics=shm,ucx,verbs"});
  ClientOptions options = OptionsFor(address());
  options.fabric = "auto";
  auto client = Client::Connect(options);
  ASSERT_OK(client.status());
  EXPECT_EQ((*client)->FabricName(), "shm");
}

// Huge pages reserved for as long as it lives.
class ReservedHugePages {
 public:
  explicit ReservedHugePages(int pages) : before_(Read()) { Write(before_ + pages); }
  ~ReservedHugePages() { Write(before_); }
  bool had(int pages) const { return Read() >= before_ + pages; }

 private:
  static constexpr char kFile[] = "/proc/sys/vm/nr_hugepages";
  static int Read() {
    int pages = 0;
    std::ifstream(kFile) >> pages;
    return pages;
  }
  static void Write(int pages) { std::ofstream(kFile) << pages; }
  const int before_;
};

TEST_F(VerbsServiceTest, ArenasOnHugePages) {
  constexpr int kPages = 34;  // of 2 MiB: the pool, and the table of grant words if it wants some
  cluster_.reset();
  const ReservedHugePages pages(kPages);
  if (!pages.had(kPages)) GTEST_SKIP() << "needs " << kPages << " huge pages, and root to ask for";
  ::testing::internal::CaptureStderr();
  StartDaemon({"--fabrics=verbs", "--huge_pages=require", "--log_level=info"});
  const std::string log = ::testing::internal::GetCapturedStderr();
  ASSERT_NE(cluster_, nullptr) << log;
  EXPECT_TRUE(Capacity().huge_pages());
  EXPECT_THAT(log, ::testing::ContainsRegex("registered 1 arenas, 0\\.06 GiB in 32 pages, for "
                                            "readers and for writers in [0-9.]+ s"));
  const size_t line = log.find("registered ");
  if (line != log.npos) std::printf("%s\n", log.substr(line, log.find('\n', line) - line).c_str());
  const Content content(QwenLike(), 256, 1);
  auto client = Connect();
  ASSERT_OK(Put(*client, "a", content));
  auto reader = client->Attach(ReadSpecOf("a", content.geometry()));
  ASSERT_OK(reader.status());
  std::vector<std::byte> into;
  const auto reads = AllEntries(content, into);
  ASSERT_OK(Fetch(*reader, reads));
  EXPECT_TRUE(AllRight(content, reads));
  cluster_.reset();  // before the pages go
}

}  // namespace
}  // namespace oasiskv::testing
