// The doctor's checks over machines made of files; those of devices are in doctor_devices_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/options/options.h"
#include "tests/unit/tools/doctor_machine.h"
#include "tools/oasisctl/doctor/check.h"

namespace oasiskv::oasisctl {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST_F(Machine, WithoutRdmaIsFitAndSaysWhatIsMissing) {
  world_.locked_memory = {8 * kMiB, 8 * kMiB};
  const auto checks = Examine(world_, wants_);
  EXPECT_EQ(WorstOf(checks), Health::kWarn) << ForPeople(checks);
  EXPECT_EQ(Of("rdma_devices").health, Health::kWarn);
  EXPECT_THAT(Of("rdma_devices").fix, HasSubstr("rdma link add"));
  EXPECT_THAT(Of("rdma_choice").found, HasSubstr("devices seen: none"));
  // Nothing would lock memory, so a small limit is ok.
  EXPECT_EQ(Of("locked_memory").health, Health::kOk);
  for (const Check& check : checks) {
    EXPECT_THAT(check.found, Not(IsEmpty())) << check.name;
    EXPECT_THAT(check.why, Not(IsEmpty())) << check.name;
    EXPECT_EQ(check.fix.empty(), check.health == Health::kOk) << check.name;
  }
}

TEST_F(Machine, HugePages) {
  EXPECT_EQ(Of("huge_pages").health, Health::kWarn);
  EXPECT_THAT(Of("huge_pages").fix, HasSubstr("vm.nr_hugepages=512 "));
  Memory({.total = 600, .free = 500});  // 100 are in use and stay so
  EXPECT_EQ(Of("huge_pages").health, Health::kWarn);
  EXPECT_THAT(Of("huge_pages").fix, HasSubstr("vm.nr_hugepages=612 "));
  wants_.pool_bytes = 8 * kGiB;  // 4 GiB are available
  EXPECT_THAT(Of("huge_pages").fix, HasSubstr("lower --pool_bytes"));
  wants_.pool_bytes = kGiB;
  Memory({.total = 600, .free = 512});
  EXPECT_EQ(Of("huge_pages").health, Health::kOk);
  EXPECT_EQ(Of("huge_pages").facts["free"], 512);
  wants_.pool_bytes = kGiB + 2 * kMiB;
  EXPECT_EQ(Of("huge_pages").health, Health::kWarn);
  wants_.huge_pages = HugePages::kRequire;
  EXPECT_EQ(Of("huge_pages").health, Health::kFail);
  wants_.huge_pages = HugePages::kOff;
  EXPECT_EQ(Of("huge_pages").health, Health::kOk);
  File("/proc/meminfo", "MemAvailable:    4194304 kB\n");
  wants_.huge_pages = HugePages::kPrefer;
  EXPECT_THAT(Of("huge_pages").found, HasSubstr("this kernel has none"));
}

TEST_F(Machine, MemoryIsTheLeastOfTheMachinesAndTheControlGroups) {
  EXPECT_EQ(Of("memory").health, Health::kOk);
  wants_.pool_bytes = 5 * kGiB;
  EXPECT_EQ(Of("memory").health, Health::kFail);
  EXPECT_THAT(Of("memory").fix, HasSubstr("4096MiB"));
  // Huge pages are reserved: they are not part of the available memory.
  Memory({.total = 2560, .free = 2560});
  EXPECT_EQ(Of("memory").health, Health::kOk);

  Memory({.total = 0, .free = 0});
  wants_.pool_bytes = kGiB;
  File("/proc/self/cgroup", "0::/system.slice/oasiskvd.service");
  File("/sys/fs/cgroup/system.slice/memory.max", absl::StrCat(kGiB));
  File("/sys/fs/cgroup/system.slice/memory.current", absl::StrCat(256 * kMiB));
  File("/sys/fs/cgroup/system.slice/oasiskvd.service/memory.max", "max");
  EXPECT_EQ(Of("memory").health, Health::kFail);
  EXPECT_THAT(Of("memory").fix, HasSubstr("768MiB"));
}

TEST_F(Machine, StrictOvercommitBoundsThePool) {
  File("/proc/sys/vm/overcommit_memory", "2");
  EXPECT_EQ(Of("overcommit").health, Health::kFail);  // 512 MiB are left
  wants_.pool_bytes = 256 * kMiB;
  EXPECT_EQ(Of("overcommit").health, Health::kOk);
}

TEST_F(Machine, LimitsOfTheKernel) {
  File("/proc/sys/vm/max_map_count", "1000");
  EXPECT_EQ(Of("max_map_count").health, Health::kWarn);
  world_.open_files = {1024, 4096};
  EXPECT_EQ(Of("open_files").health, Health::kWarn);
  EXPECT_THAT(Of("open_files").fix, HasSubstr("LimitNOFILE"));
  EXPECT_THAT(Of("open_files").fix, Not(HasSubstr("fs.file-max")));
  File("/proc/sys/fs/file-max", "8192");
  EXPECT_THAT(Of("open_files").fix, HasSubstr("fs.file-max"));
  world_.free_bytes = [](const std::string&) { return std::optional<uint64_t>(kMiB); };
  EXPECT_EQ(Of("dev_shm").health, Health::kWarn);
}

TEST_F(Machine, SocketFoldersInTheDaemonsOrder) {
  EXPECT_EQ(Of("shm_socket").facts["path"], "/tmp/oasiskvd-7400.sock");
  world_.environment["XDG_RUNTIME_DIR"] = "/run/user/1000";
  File("/run/user/1000/.keep", "");
  EXPECT_EQ(Of("shm_socket").facts["path"], "/run/user/1000/oasiskvd-7400.sock");
  File("/run/oasiskv/oasiskvd-7400.sock", "");
  EXPECT_EQ(Of("shm_socket").facts["path"], "/run/oasiskv/oasiskvd-7400.sock");
  EXPECT_EQ(Of("shm_socket").facts["exists"], true);
  for (const char* folder : {"/run", "/tmp"}) std::filesystem::remove_all(world_.root + folder);
  EXPECT_EQ(Of("shm_socket").health, Health::kFail);
  const std::string deep = "/run/" + std::string(100, 'd');
  File(deep + "/.keep", "");
  world_.environment["XDG_RUNTIME_DIR"] = deep;
  EXPECT_EQ(Of("shm_socket").health, Health::kFail);
  EXPECT_THAT(Of("shm_socket").fix, HasSubstr("--shm_socket"));
}

TEST_F(Machine, TakenPorts) {
  File("/proc/net/tcp",
       "  sl  local_address rem_address   st\n"
       "   0: 0100007F:1CE8 00000000:0000 0A 00000000:00000000\n"    // listens on 7400
       "   1: 0100007F:1CE9 0100007F:9999 01 00000000:00000000\n");  // 7401, connected only
  File("/proc/net/tcp6",
       "  sl  local_address rem_address st\n"
       "   0: 00000000000000000000000000000000:1CEA 00000000000000000000000000000000:0000 0A\n");
  const Check check = Of("ports");
  EXPECT_EQ(check.health, Health::kWarn);
  EXPECT_THAT(check.found,
              HasSubstr("7400 (control) taken, 7401 (metrics) free, 7402 (ucx) taken"));
  EXPECT_THAT(check.fix, HasSubstr("--control_address=127.0.0.1:0 --ucx_address=127.0.0.1:0"));
  EXPECT_THAT(check.fix, Not(HasSubstr("metrics_address")));
}

TEST(DoctorDefaults, AreTheDaemons) {
  const server::Options daemon;
  EXPECT_EQ(kControlPort, daemon.control_address.port);
  EXPECT_EQ(kMetricsPort, daemon.metrics_address->port);
  EXPECT_EQ(Wants{}.pool_bytes, daemon.core.pool_bytes);
}

TEST_F(Machine, TextFitsInAHundredColumnsAndJsonHasEachCheck) {
  RdmaPort("mlx5_0", 1, "4: ACTIVE", "2001:0db8:1111:2222:3333:4444:5555:6666", "enp193s0f0np0");
  world_.locked_memory = {8 * kMiB, 8 * kMiB};
  const auto checks = Examine(world_, wants_);
  const std::string text = ForPeople(checks);
  for (const absl::string_view line : absl::StrSplit(text, '\n'))
    EXPECT_LE(line.size(), 100u) << line;
  EXPECT_THAT(text, HasSubstr("\nfail  locked_memory "));
  const auto json = nlohmann::json::parse(ForPrograms(checks));
  EXPECT_EQ(json["status"], "fail");
  EXPECT_EQ(json["checks"].size(), checks.size());
  std::vector<std::string> names;
  for (const auto& check : json["checks"]) {
    names.push_back(check["name"]);
    for (const char* key : {"status", "found", "why", "fix", "facts"}) {
      EXPECT_TRUE(check.contains(key)) << check["name"] << " " << key;
    }
  }
  EXPECT_THAT(
      names, ::testing::ElementsAre("memory", "huge_pages", "overcommit", "dev_shm", "rdma_devices",
                                    "rdma_choice", "locked_memory", "numa", "gpu", "gpudirect",
                                    "ucx", "max_map_count", "open_files", "shm_socket", "ports"));
}

// On any machine every check gives a result.
TEST(ThisMachine, IsLookedAtWithoutADaemon) {
  const auto checks = Examine(World::OfThisMachine({}), {});
  for (const Check& check : checks) EXPECT_THAT(check.found, Not(IsEmpty())) << check.name;
}

}  // namespace
}  // namespace oasiskv::oasisctl
