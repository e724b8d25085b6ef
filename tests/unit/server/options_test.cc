#include "server/options/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "oasiskv/error.h"

namespace oasiskv::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A file of the test's own, gone with it.
class TempFile {
 public:
  explicit TempFile(const std::string& text) {
    char path[] = "/tmp/oasiskv_options_XXXXXX";
    ::close(::mkstemp(path));
    path_ = path;
    std::ofstream(path_) << text;
  }
  ~TempFile() { ::unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

Options Parse(const std::vector<std::string>& args) {
  auto line = ParseCommandLine(args);
  EXPECT_TRUE(line.ok()) << line.status();
  return line.ok() ? line->options : Options{};
}

TEST(OptionsTest, DefaultsAreThoseOfTheStruct) {
  const Options options = Parse({});
  EXPECT_EQ(options.control_address, (Address{"127.0.0.1", 7400}));
  ASSERT_TRUE(options.metrics_address.has_value());
  EXPECT_EQ(*options.metrics_address, (Address{"127.0.0.1", 7401}));
  EXPECT_THAT(options.fabrics, ElementsAre("shm", "ucx"));  // verbs only where it is named
  EXPECT_EQ(options.fabrics, Options().fabrics);
  EXPECT_EQ(options.fabric.ucx.address, Options().fabric.ucx.address);
  EXPECT_EQ(options.fabric.verbs.port.gid_index, -1);
  EXPECT_EQ(options.fence_timeout, Options().fence_timeout);
  const CoreOptions core;
  EXPECT_EQ(options.core.pool_bytes, core.pool_bytes);
  EXPECT_EQ(options.core.slab_bytes, core.slab_bytes);
  EXPECT_EQ(options.core.max_blob_bytes, core.max_blob_bytes);
  EXPECT_EQ(options.core.default_lease, core.default_lease);
  EXPECT_EQ(options.core.max_lease, core.max_lease);
  EXPECT_EQ(options.core.unattended_ttl, core.unattended_ttl);
}

TEST(OptionsTest, EveryFormOfAFlagIsUnderstood) {
  const Options options = Parse(
      {"--control_address", "[::1]:0", "--metrics_address=", "--fabrics=shm",
       "--shm_allowed_uids=7,8", "--pool_bytes=2GiB", "--slab_bytes=2MiB", "--arena_bytes=1GiB",
       "--huge_pages=prefer", "--default_lease=1500ms", "--log_level=error"});
  EXPECT_EQ(options.control_address, (Address{"::1", 0}));
  EXPECT_FALSE(options.metrics_address.has_value());
  EXPECT_THAT(options.fabrics, ElementsAre("shm"));
  EXPECT_THAT(options.fabric.shm.allowed_uids, ElementsAre(7, 8));
  EXPECT_EQ(options.core.pool_bytes, uint64_t{2} << 30);
  EXPECT_EQ(options.core.arena_bytes, uint64_t{1} << 30);
  EXPECT_EQ(options.core.huge_pages, HugePages::kPrefer);
  EXPECT_EQ(options.core.default_lease, Millis(1500));
  EXPECT_EQ(options.log_level, LogLevel::kError);
  const Options rdma = Parse({"--fabrics=verbs", "--verbs_device=mlx5_1", "--verbs_port=2",
                              "--verbs_gid_index=0", "--fence_timeout=1500ms"});
  EXPECT_THAT(rdma.fabrics, ElementsAre("verbs"));
  EXPECT_EQ(rdma.fabric.verbs.port.device, "mlx5_1");
  EXPECT_EQ(rdma.fabric.verbs.port.port, 2u);
  EXPECT_EQ(rdma.fabric.verbs.port.gid_index, 0);
  EXPECT_EQ(rdma.fence_timeout, Millis(1500));
}

TEST(OptionsTest, OneParseLeavesNothingBehindForTheNext) {
  EXPECT_EQ(Parse({"--max_grants=5"}).core.max_grants, 5u);
  EXPECT_EQ(Parse({}).core.max_grants, CoreOptions{}.max_grants);
}

TEST(OptionsTest, TheUnattendedTimeMayBeOff) {
  EXPECT_EQ(Parse({"--unattended_ttl=0"}).core.unattended_ttl, Duration(0));
  EXPECT_EQ(Parse({"--unattended_ttl=2m"}).core.unattended_ttl, std::chrono::minutes(2));
  EXPECT_EQ(Parse({"--unattended_ttl=100ms"}).core.unattended_ttl, Millis(100));
}

struct BadCase {
  const char* args;  // separated by blanks
  const char* flag;
  const char* found;
};
class OptionsBad : public ::testing::TestWithParam<BadCase> {};

TEST_P(OptionsBad, IsRefusedAndTheMessageNamesTheFlag) {
  const BadCase& bad = GetParam();
  auto line = ParseCommandLine(absl::StrSplit(bad.args, ' '));
  ASSERT_FALSE(line.ok()) << bad.args;
  EXPECT_EQ(ErrorCodeOf(line.status()), ErrorCode::kInvalidArgument);
  EXPECT_THAT(std::string(line.status().message()),
              AllOf(HasSubstr(bad.flag), HasSubstr(bad.found)));
}

INSTANTIATE_TEST_SUITE_P(
    All, OptionsBad,
    ::testing::Values(BadCase{"--nosuch=1", "--nosuch", "not a flag"},
                      BadCase{"--pool_bytes", "--pool_bytes", "value"},
                      BadCase{"stray", "stray", "only flags"},
                      BadCase{"-- stray", "stray", "only flags"},
                      BadCase{"--nocontrol_address", "--nocontrol_address", "not a flag"},
                      BadCase{"--control_address=a:b:c", "--control_address", "a:b:c"},
                      BadCase{"--metrics_address=host:99999", "--metrics_address", "99999"},
                      BadCase{"--ucx_address=[::1", "--ucx_address", "[::1"},
                      BadCase{"--fabrics=rdma", "--fabrics", "rdma"},
                      BadCase{"--fabrics=", "--fabrics", "at least"},
                      BadCase{"--verbs_port=256", "--verbs_port", "256"},
                      BadCase{"--verbs_gid_index=-2", "--verbs_gid_index", "-2"},
                      BadCase{"--verbs_gid_index=256", "--verbs_gid_index", "256"},
                      BadCase{"--fence_timeout=0", "--fence_timeout", "100ms"},
                      BadCase{"--pool_bytes=1GB", "--pool_bytes", "1GB"},
                      BadCase{"--pool_bytes=-1", "--pool_bytes", "-1"},
                      BadCase{"--pool_bytes=99999999999TiB", "--pool_bytes", "99999999999TiB"},
                      BadCase{"--pool_bytes=65MiB", "--pool_bytes", "--slab_bytes=64MiB"},
                      BadCase{"--pool_bytes=0", "--pool_bytes", "not 0"},
                      BadCase{"--slab_bytes=100", "--slab_bytes", "page"},
                      BadCase{"--arena_bytes=96MiB", "--arena_bytes", "96MiB"},
                      BadCase{"--huge_pages=yes", "--huge_pages", "require"},
                      BadCase{"--numa_node=-2", "--numa_node", "-2"},
                      BadCase{"--touch_threads=-1", "--touch_threads", "-1"},
                      BadCase{"--max_grants=0", "--max_grants", "1 to"},
                      BadCase{"--max_sequences=-1", "--max_sequences", "-1"},
                      BadCase{"--max_blob_bytes=3MiB", "--max_blob_bytes", "2MiB"},
                      BadCase{"--default_lease=20m", "--default_lease", "--max_lease=10m"},
                      BadCase{"--default_lease=1ms", "--default_lease", "100ms"},
                      BadCase{"--unattended_ttl=-1s", "--unattended_ttl", "0 (never)"},
                      BadCase{"--unattended_ttl=99ms", "--unattended_ttl", "100ms"},
                      BadCase{"--unattended_ttl=25h", "--unattended_ttl", "24h"},
                      BadCase{"--unattended_ttl=inf", "--unattended_ttl", "inf"},
                      BadCase{"--unattended_ttl=600", "--unattended_ttl", "600"},
                      BadCase{"--drain_timeout=-1s", "--drain_timeout", "-1s"},
                      BadCase{"--drain_timeout=5", "--drain_timeout", "5"},
                      BadCase{"--log_level=loud", "--log_level", "loud"},
                      BadCase{"--shm_allowed_uids=me", "--shm_allowed_uids", "me"},
                      BadCase{"--shm_allowed_gid=-2", "--shm_allowed_gid", "-2"},
                      BadCase{"--metrics_address=127.0.0.1:7400", "--metrics_address",
                              "--control_address"},
                      BadCase{"--flagfile=/nonexistent/file", "--flagfile", "/nonexistent/file"}));

TEST(OptionsTest, ATooLongSocketPathIsRefused) {
  auto line = ParseCommandLine({absl::StrCat("--shm_socket=/tmp/", std::string(120, 'x'))});
  ASSERT_FALSE(line.ok());
  EXPECT_THAT(std::string(line.status().message()),
              AllOf(HasSubstr("--shm_socket"), HasSubstr("107")));
}

TEST(OptionsTest, AFlagFileIsReadAndItsErrorsNameFileAndLine) {
  const TempFile good("# comment\n\n--pool_bytes=128MiB\n  --fabrics=ucx\n");
  const Options options = Parse({"--flagfile=" + good.path(), "--fabrics=shm"});
  EXPECT_EQ(options.core.pool_bytes, uint64_t{128} << 20);
  EXPECT_THAT(options.fabrics, ElementsAre("shm"));  // the later setting wins

  const TempFile bad("--pool_bytes=128MiB\n--nosuch=1\n");
  auto line = ParseCommandLine({"--flagfile", bad.path()});
  ASSERT_FALSE(line.ok());
  EXPECT_THAT(std::string(line.status().message()),
              AllOf(HasSubstr(bad.path() + ":2"), HasSubstr("--nosuch")));
}

TEST(OptionsTest, AFlagFileThatNamesItselfEnds) {
  const TempFile file("");
  std::ofstream(file.path()) << "--flagfile=" << file.path() << "\n";
  auto line = ParseCommandLine({"--flagfile=" + file.path()});
  ASSERT_FALSE(line.ok());
  EXPECT_THAT(std::string(line.status().message()), HasSubstr("nest"));
}

TEST(OptionsTest, PrintedOptionsAreAFlagFileThatSaysTheSame) {
  const std::vector<std::string> args = {"--pool_bytes=192MiB", "--default_lease=3s",
                                         "--fabrics=shm", "--control_address=[::1]:0"};
  std::vector<std::string> print = args;
  print.push_back("--print_options");
  auto printed = ParseCommandLine(print);
  ASSERT_TRUE(printed.ok()) << printed.status();
  EXPECT_EQ(printed->action, Action::kPrintOptions);
  const TempFile file(printed->text);
  auto again = ParseCommandLine({"--flagfile=" + file.path()});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->action, Action::kServe);
  EXPECT_EQ(again->options.core.pool_bytes, uint64_t{192} << 20);
  EXPECT_EQ(again->options.core.default_lease, std::chrono::seconds(3));
  EXPECT_EQ(again->options.control_address, (Address{"::1", 0}));
  EXPECT_THAT(again->options.fabrics, ElementsAre("shm"));
}

TEST(OptionsTest, HelpListsEveryFlagAndVersionIsPrinted) {
  auto help = ParseCommandLine({"--help"});
  ASSERT_TRUE(help.ok());
  EXPECT_EQ(help->action, Action::kPrintHelp);
  for (const char* flag :
       {"--control_address=", "--pool_bytes=1GiB", "--drain_timeout=5m", "--flagfile"}) {
    EXPECT_THAT(help->text, HasSubstr(flag));
  }
  auto version = ParseCommandLine({"--version"});
  ASSERT_TRUE(version.ok());
  EXPECT_THAT(version->text, HasSubstr("oasiskvd "));
}

}  // namespace
}  // namespace oasiskv::server
