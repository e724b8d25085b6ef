// The bench's ib_read_bw: absent, hanging, failing, and as it should be; scripts stand in for it.
// What ucx_perftest is run over.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "oasiskv/error.h"
#include "tools/bench/ceiling.h"

namespace oasiskv::bench {
namespace {

using ::testing::HasSubstr;

class BenchCeiling : public ::testing::Test {
 protected:
  BenchCeiling() {
    std::string folder = (std::filesystem::temp_directory_path() / "oasiskv-ceiling-XXXXXX");
    folder_ = ::mkdtemp(folder.data());
    path_ = ::getenv("PATH");
    ::setenv("PATH", folder_.c_str(), 1);
  }
  ~BenchCeiling() override {
    ::setenv("PATH", path_.c_str(), 1);
    std::filesystem::remove_all(folder_);
  }
  // Both ends are this; the client's last argument is an address.
  void Program(const std::string& body) const {
    const std::filesystem::path file = folder_ / "ib_read_bw";
    std::ofstream(file) << "#!/bin/sh\nPATH=/usr/bin:/bin\nfor last; do :; done\n" << body << "\n";
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  }
  VerbsCeiling ceiling_{{"rxe0", "rxe1"}, 8192, 64, Millis(300)};

 private:
  std::filesystem::path folder_;
  std::string path_;
};

TEST_F(BenchCeiling, AbsentIsNotFound) {
  EXPECT_EQ(ErrorCodeOf(ceiling_.Round(0).status()), ErrorCode::kNotFound);
}

TEST_F(BenchCeiling, OneThatHangsIsKilledAndNamed) {
  Program("exec sleep 600");
  const absl::Status status = ceiling_.Round(0).status();
  EXPECT_EQ(ErrorCodeOf(status), ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("ib_read_bw -d rxe0"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("--ceiling=false"));
}

TEST_F(BenchCeiling, OneThatFailsIsAnErrorAndNoEndlessRepetition) {
  Program("exit 1");
  EXPECT_EQ(ErrorCodeOf(ceiling_.Round(0).status()), ErrorCode::kInternal);
}

TEST_F(BenchCeiling, TheAverageIsTaken) {
  Program(
      "[ \"$last\" = 127.0.0.1 ] || exec sleep 600\n"
      "echo ' #bytes #iterations BW peak[MB/sec] BW average[MB/sec] MsgRate[Mpps]'\n"
      "echo ' 8192   1000  90.00   50.00   0.01'");
  const absl::StatusOr<double> rate = ceiling_.Round(0);
  ASSERT_TRUE(rate.ok()) << rate.status();
  EXPECT_DOUBLE_EQ(*rate, 50.0 * (1 << 20) / 1e9);
  EXPECT_THAT(ceiling_.command(), HasSubstr("-s 8192 -q 4 -t 16"));
}

TEST(UcxRoute, IsTheFamilyOfTheLaneThatTheConnectionNames) {
  const auto transports = [](const std::string& how) {
    return UcxRouteOf("oasiskvd 0.2.0 at 10.0.0.1:7400, ucx 10.0.0.1:7402, " + how +
                      " (ucx, as asked)")
        .transports;
  };
  EXPECT_EQ(transports("rc_verbs/rxe0:1"), "rc");
  EXPECT_EQ(transports("dc_mlx5/mlx5_0:1"), "dc");
  EXPECT_EQ(transports("tcp/lo"), "tcp");
  EXPECT_EQ(transports("unknown"), "tcp");
  EXPECT_EQ(UcxRouteOf("not connected").transports, "tcp");
}

}  // namespace
}  // namespace oasiskv::bench
