// The doctor's checks over machines made of files.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "oasiskv/error.h"
#include "server/options/options.h"
#include "tools/oasisctl/doctor/check.h"

namespace oasiskv::oasisctl {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;

// Thread contract: used by one thread.
//
// A machine in a folder of its own. It begins as a sound one without RDMA, GPU or huge pages.
class Machine : public ::testing::Test {
 protected:
  Machine() {
    std::string folder = (std::filesystem::temp_directory_path() / "oasiskv-doctor-XXXXXX");
    world_.root = ::mkdtemp(folder.data());
    Memory({.total = 0, .free = 0});
    File("/proc/self/status", "Name:\tdoctor\nCapEff:\t0000000000000000\n");
    File("/proc/self/cgroup", "0::/");
    File("/proc/sys/vm/overcommit_memory", "0");
    File("/proc/sys/vm/max_map_count", "65530");
    File("/proc/sys/fs/file-max", "9223372036854775807");
    File("/proc/net/tcp", "  sl  local_address rem_address   st\n");
    File("/tmp/.keep", "");
    File("/dev/shm/.keep", "");
    File("/sys/devices/system/node/node0/meminfo", "Node 0 MemFree:        4194304 kB\n");
    File("/sys/devices/system/node/node0/cpulist", "0-3");
    world_.open_files = {65536, 65536};
    world_.verbs_port = MakeError(ErrorCode::kUnsupported, "no RDMA device; devices seen: none");
    world_.ucx_version = "1.13.1";
    world_.free_bytes = [](const std::string&) { return std::optional<uint64_t>(kGiB); };
  }
  ~Machine() override { std::filesystem::remove_all(world_.root); }

  void File(const std::string& path, const std::string& text) {
    const std::filesystem::path place = world_.root + path;
    std::filesystem::create_directories(place.parent_path());
    std::ofstream(place) << text;
  }

  struct HugePageCounts {
    uint64_t total, free;
  };
  void Memory(HugePageCounts pages) {
    File("/proc/meminfo", absl::StrCat("MemTotal:        8388608 kB\nMemAvailable:    4194304 kB\n"
                                       "CommitLimit:     4194304 kB\nCommitted_AS:    3670016 kB\n"
                                       "HugePages_Total:   ",
                                       pages.total, "\nHugePages_Free:    ", pages.free,
                                       "\nHugepagesize:       2048 kB\n"));
  }

  // With one GID of RoCE v2 at index 1 unless `gid` is empty, and the empty places of a real table.
  void RdmaPort(const std::string& device, int port, const std::string& state,
                const std::string& gid, const std::string& interface) {
    const std::string folder = absl::StrCat("/sys/class/infiniband/", device, "/ports/", port);
    File(folder + "/state", state);
    File(folder + "/link_layer", "Ethernet");
    File(folder + "/gids/0", "0000:0000:0000:0000:0000:0000:0000:0000");
    File(folder + "/gids/2", "fe80:0000:0000:0000:0000:0000:0000:0000");
    if (gid.empty()) return;
    File(folder + "/gids/1", gid);
    File(folder + "/gid_attrs/types/1", "RoCE v2");
    File(folder + "/gid_attrs/ndevs/1", interface);
  }

  // What the verbs library would say of such a port.
  void Takes(const std::string& device, const char* gid) {
    fabric::verbs::TakenPort taken{.device = device,
                                   .port = 1,
                                   .infiniband = false,
                                   .gid = {.index = 1,
                                           .type = fabric::verbs::GidType::kRoceV2,
                                           .gid = {},
                                           .interface = "eth1"},
                                   .reason = "index 1: the first of 1",
                                   .max_registration_bytes = kUnlimited,
                                   .device_memory = absl::OkStatus()};
    EXPECT_EQ(::inet_pton(AF_INET6, gid, taken.gid.gid.data()), 1);
    world_.verbs_port = taken;
  }

  Check Of(const std::string& name) const {
    for (const Check& check : Examine(world_, wants_)) {
      if (check.name == name) return check;
    }
    ADD_FAILURE() << "no check " << name;
    return {};
  }

  World world_;
  Wants wants_;
};

TEST_F(Machine, WithoutRdmaIsFitAndSaysWhatIsMissing) {
  world_.locked_memory = {8 * kMiB, 8 * kMiB};
  const auto checks = Examine(world_, wants_);
  EXPECT_EQ(WorstOf(checks), Health::kWarn) << ForPeople(checks);
  EXPECT_EQ(Of("rdma_devices").health, Health::kWarn);
  EXPECT_THAT(Of("rdma_devices").mend, HasSubstr("rdma link add"));
  EXPECT_THAT(Of("rdma_choice").found, HasSubstr("devices seen: none"));
  // Nothing would lock memory, so a small limit is no fault.
  EXPECT_EQ(Of("locked_memory").health, Health::kOk);
  for (const Check& check : checks) {
    EXPECT_THAT(check.found, Not(IsEmpty())) << check.name;
    EXPECT_THAT(check.why, Not(IsEmpty())) << check.name;
    EXPECT_EQ(check.mend.empty(), check.health == Health::kOk) << check.name;
  }
}

TEST_F(Machine, SmallLimitOnLockedMemoryFailsWhereRdmaIs) {
  RdmaPort("mlx5_0", 1, "4: ACTIVE", "0000:0000:0000:0000:0000:ffff:0a00:0001", "eth1");
  Takes("mlx5_0", "::ffff:10.0.0.1");
  world_.locked_memory = {8 * kMiB, 64 * kMiB};
  const Check check = Of("locked_memory");
  EXPECT_EQ(check.health, Health::kFail);
  EXPECT_THAT(check.found, HasSubstr("8.00 MiB"));
  EXPECT_THAT(check.mend, HasSubstr("LimitMEMLOCK=infinity"));
  EXPECT_THAT(check.mend, HasSubstr("the hard limit is 64.00 MiB"));
  EXPECT_GE(check.facts["needed_bytes"], 2 * kGiB);

  world_.locked_memory = {kUnlimited, kUnlimited};
  EXPECT_EQ(Of("locked_memory").health, Health::kOk);
  // A limit for the pool once is not enough: it is registered twice.
  world_.locked_memory = {kGiB + 64 * kMiB, kUnlimited};
  EXPECT_EQ(Of("locked_memory").health, Health::kFail);
  EXPECT_THAT(Of("locked_memory").mend, Not(HasSubstr("hard limit")));
  wants_.pool_bytes = 256 * kMiB;
  EXPECT_EQ(Of("locked_memory").health, Health::kOk);
}

TEST_F(Machine, CapabilityToLockFreesOfTheLimit) {
  RdmaPort("mlx5_0", 1, "4: ACTIVE", "0000:0000:0000:0000:0000:ffff:0a00:0001", "eth1");
  world_.locked_memory = {8 * kMiB, 8 * kMiB};
  File("/proc/self/status", "CapEff:\t0000000000004000\n");
  EXPECT_EQ(Of("locked_memory").health, Health::kOk);
  EXPECT_THAT(Of("locked_memory").found, HasSubstr("IPC_LOCK"));
  File("/proc/self/status", "CapEff:\t000001ffffffbfff\n");  // all but this one
  EXPECT_EQ(Of("locked_memory").health, Health::kFail);
}

TEST_F(Machine, HugePages) {
  EXPECT_EQ(Of("huge_pages").health, Health::kWarn);
  EXPECT_THAT(Of("huge_pages").mend, HasSubstr("vm.nr_hugepages=512 "));
  Memory({.total = 600, .free = 500});  // 100 are in use and stay so
  EXPECT_EQ(Of("huge_pages").health, Health::kWarn);
  EXPECT_THAT(Of("huge_pages").mend, HasSubstr("vm.nr_hugepages=612 "));
  wants_.pool_bytes = 8 * kGiB;  // 4 GiB are available
  EXPECT_THAT(Of("huge_pages").mend, HasSubstr("lower --pool_bytes"));
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
  EXPECT_THAT(Of("memory").mend, HasSubstr("4096MiB"));
  // Huge pages are set aside: they are not part of what is available.
  Memory({.total = 2560, .free = 2560});
  EXPECT_EQ(Of("memory").health, Health::kOk);

  Memory({.total = 0, .free = 0});
  wants_.pool_bytes = kGiB;
  File("/proc/self/cgroup", "0::/system.slice/oasiskvd.service");
  File("/sys/fs/cgroup/system.slice/memory.max", absl::StrCat(kGiB));
  File("/sys/fs/cgroup/system.slice/memory.current", absl::StrCat(256 * kMiB));
  File("/sys/fs/cgroup/system.slice/oasiskvd.service/memory.max", "max");
  EXPECT_EQ(Of("memory").health, Health::kFail);
  EXPECT_THAT(Of("memory").mend, HasSubstr("768MiB"));
}

TEST_F(Machine, StrictOvercommitBoundsThePool) {
  File("/proc/sys/vm/overcommit_memory", "2");
  EXPECT_EQ(Of("overcommit").health, Health::kFail);  // 512 MiB are left
  wants_.pool_bytes = 256 * kMiB;
  EXPECT_EQ(Of("overcommit").health, Health::kOk);
}

TEST_F(Machine, SeveralDevicesAreListedWithPortsAndGids) {
  RdmaPort("mlx5_0", 1, "1: DOWN", "", "");
  RdmaPort("mlx5_1", 1, "4: ACTIVE", "0000:0000:0000:0000:0000:ffff:0a00:0001", "eth1");
  RdmaPort("mlx5_1", 2, "4: ACTIVE", "2001:0db8:0000:0000:0000:0000:0000:0001", "eth2");
  File("/sys/class/infiniband/mlx5_1/device/numa_node", "1");
  File("/sys/class/infiniband_verbs/uverbs7/ibdev", "mlx5_1");
  Takes("mlx5_1", "::ffff:10.0.0.1");
  const Check check = Of("rdma_devices");
  EXPECT_EQ(check.health, Health::kOk);
  EXPECT_THAT(check.found, HasSubstr("mlx5_0 port 1: DOWN, Ethernet, no GID"));
  EXPECT_THAT(check.found, HasSubstr("GID 1 RoCE v2 ::ffff:10.0.0.1 (eth1)"));
  EXPECT_THAT(check.found, HasSubstr("mlx5_1 port 2: ACTIVE, Ethernet, NUMA node 1"));
  const auto& device = check.facts["devices"][1];
  EXPECT_EQ(device["device_file"], "/dev/infiniband/uverbs7");
  EXPECT_EQ(device["ports"][1]["gids"].size(), 1u);  // not the empty places
  EXPECT_EQ(device["ports"][1]["gids"][0]["address"], "2001:db8::1");
  EXPECT_EQ(Of("rdma_choice").health, Health::kOk);
  EXPECT_THAT(Of("rdma_choice").found, HasSubstr("mlx5_1 port 1, GID index 1"));

  File("/sys/devices/system/node/node1/meminfo", "Node 1 MemFree:        524288 kB\n");
  EXPECT_EQ(Of("numa").health, Health::kWarn);
  EXPECT_THAT(Of("numa").mend, HasSubstr("--numa_node=1"));
  wants_.numa_node = 1;
  EXPECT_THAT(Of("numa").mend, HasSubstr("lower --pool_bytes"));  // the node has 512 MiB
  wants_.pool_bytes = 256 * kMiB;
  EXPECT_EQ(Of("numa").health, Health::kOk);
}

TEST_F(Machine, DevicesWhoseKernelPortTheLibraryDoesNotTakeFail) {
  RdmaPort("mlx5_0", 1, "1: DOWN", "", "");
  EXPECT_EQ(Of("rdma_devices").health, Health::kWarn);
  EXPECT_THAT(Of("rdma_devices").mend, HasSubstr("ip link set"));
  EXPECT_EQ(Of("rdma_choice").health, Health::kWarn);
  RdmaPort("mlx5_0", 1, "4: ACTIVE", "", "");
  EXPECT_EQ(Of("rdma_choice").health, Health::kWarn);  // no GID that could be chosen
  EXPECT_THAT(Of("rdma_choice").mend, HasSubstr("ip address add"));
  RdmaPort("mlx5_0", 1, "4: ACTIVE", "0000:0000:0000:0000:0000:ffff:0a00:0001", "eth1");
  File("/sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0");
  EXPECT_EQ(Of("rdma_choice").health, Health::kFail);
  EXPECT_THAT(Of("rdma_choice").mend, HasSubstr("ibverbs-providers"));
  EXPECT_THAT(Of("rdma_choice").mend, HasSubstr("/dev/infiniband/uverbs0 is missing"));
  File("/dev/infiniband/uverbs0", "");
  EXPECT_THAT(Of("rdma_choice").mend, HasSubstr("/dev/infiniband/uverbs0 can be opened"));
}

TEST_F(Machine, ChoicesThatReachNotFarAreWarnedOf) {
  RdmaPort("rxe0", 1, "4: ACTIVE", "fe80:0000:0000:0000:0000:0000:0000:0001", "eth1");
  Takes("rxe0", "fe80::1");
  EXPECT_EQ(Of("rdma_choice").health, Health::kWarn);
  EXPECT_THAT(Of("rdma_choice").mend, HasSubstr("dev eth1"));
  Takes("rxe0", "::ffff:10.0.0.1");
  EXPECT_EQ(Of("rdma_choice").health, Health::kOk);
  world_.verbs_port->max_registration_bytes = 512 * kMiB;
  EXPECT_THAT(Of("rdma_choice").mend, HasSubstr("--arena_bytes"));
  // A device that was asked for and is not there is a failure even where others are not missed.
  wants_.verbs.device = "mlx5_9";
  world_.verbs_port = MakeError(ErrorCode::kUnsupported, "there is no RDMA device 'mlx5_9'");
  EXPECT_EQ(Of("rdma_choice").health, Health::kFail);
}

TEST_F(Machine, UcxVariables) {
  EXPECT_EQ(Of("ucx").health, Health::kOk);
  File("/sys/class/net/eth0/mtu", "1500");
  world_.environment = {{"HOME", "/"}, {"UCX_TLS", "tcp,self"}, {"UCX_NET_DEVICES", "eth0"}};
  EXPECT_EQ(Of("ucx").health, Health::kWarn);
  EXPECT_THAT(Of("ucx").mend, HasSubstr("unset UCX_NET_DEVICES UCX_TLS"));
  for (const char* good : {"rc", "rc_x,sm", "ud_verbs", "^cma", "all"}) {
    world_.environment["UCX_TLS"] = good;
    EXPECT_EQ(Of("ucx").health, Health::kWarn) << good;
  }
  world_.environment["UCX_TLS"] = "sm,self";
  EXPECT_EQ(Of("ucx").health, Health::kFail);
  world_.environment = {{"UCX_NET_DEVICES", "eth0,mlx5_0:1"}};
  EXPECT_EQ(Of("ucx").health, Health::kFail);
  EXPECT_THAT(Of("ucx").mend, HasSubstr("(mlx5_0)"));
  RdmaPort("mlx5_0", 1, "4: ACTIVE", "", "");
  EXPECT_EQ(Of("ucx").health, Health::kWarn);
  world_.ucx_version = MakeError(ErrorCode::kUnsupported, "no such library");
  EXPECT_EQ(Of("ucx").health, Health::kFail);
}

TEST_F(Machine, Gpus) {
  EXPECT_EQ(Of("gpu").health, Health::kOk);
  RdmaPort("mlx5_0", 1, "4: ACTIVE", "", "");
  File("/proc/driver/nvidia/gpus/0000:17:00.0/information", "Model: \t NVIDIA H200\nIRQ: 1\n");
  EXPECT_EQ(Of("gpu").health, Health::kWarn);
  EXPECT_THAT(Of("gpu").mend, HasSubstr("/dev/nvidia0"));
  File("/dev/nvidia0", "");
  File("/dev/nvidia-uvm", "");
  EXPECT_THAT(Of("gpu").found, HasSubstr("NVIDIA H200 (0000:17:00.0)"));
  EXPECT_THAT(Of("gpu").mend, HasSubstr("modprobe nvidia_peermem"));
  EXPECT_EQ(Of("gpu").facts["device_files"], 1u);
  File("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64");
  EXPECT_EQ(Of("gpu").health, Health::kOk);
  File("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module");
  File("/sys/module/nvidia_peermem/version", "1");
  EXPECT_EQ(Of("gpu").health, Health::kOk);
}

TEST_F(Machine, GpuDirect) {
  EXPECT_EQ(Of("gpudirect").health, Health::kOk);  // nothing lacks where there is no GPU
  EXPECT_EQ(Of("gpudirect").facts["dmabuf"], false);
  Takes("mlx5_0", "::ffff:10.0.0.1");
  EXPECT_EQ(Of("gpudirect").facts["dmabuf"], true);
  EXPECT_THAT(Of("gpudirect").found, HasSubstr("mlx5_0 registers"));
  File("/proc/driver/nvidia/gpus/0000:17:00.0/information", "Model: \t NVIDIA H200\nIRQ: 1\n");
  EXPECT_EQ(Of("gpudirect").health, Health::kOk);
  world_.verbs_port->device_memory = MakeError(ErrorCode::kUnsupported, "no such symbol");
  EXPECT_EQ(Of("gpudirect").health, Health::kWarn);
  EXPECT_THAT(Of("gpudirect").found, HasSubstr("no such symbol"));
}

TEST_F(Machine, LimitsOfTheKernel) {
  File("/proc/sys/vm/max_map_count", "1000");
  EXPECT_EQ(Of("max_map_count").health, Health::kWarn);
  world_.open_files = {1024, 4096};
  EXPECT_EQ(Of("open_files").health, Health::kWarn);
  EXPECT_THAT(Of("open_files").mend, HasSubstr("LimitNOFILE"));
  EXPECT_THAT(Of("open_files").mend, Not(HasSubstr("fs.file-max")));
  File("/proc/sys/fs/file-max", "8192");
  EXPECT_THAT(Of("open_files").mend, HasSubstr("fs.file-max"));
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
  EXPECT_THAT(Of("shm_socket").mend, HasSubstr("--shm_socket"));
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
  EXPECT_THAT(check.mend, HasSubstr("--control_address=127.0.0.1:0 --ucx_address=127.0.0.1:0"));
  EXPECT_THAT(check.mend, Not(HasSubstr("metrics_address")));
}

TEST(DoctorDefaults, AreTheDaemons) {
  const server::Options daemon;
  EXPECT_EQ(kControlPort, daemon.control_address.port);
  EXPECT_EQ(kMetricsPort, daemon.metrics_address->port);
  EXPECT_EQ(kUcxPort, daemon.ucx_address.port);
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
    for (const char* key : {"status", "found", "why", "mend", "facts"}) {
      EXPECT_TRUE(check.contains(key)) << check["name"] << " " << key;
    }
  }
  EXPECT_THAT(
      names, ::testing::ElementsAre("memory", "huge_pages", "overcommit", "dev_shm", "rdma_devices",
                                    "rdma_choice", "locked_memory", "numa", "gpu", "gpudirect", "ucx",
                                    "max_map_count", "open_files", "shm_socket", "ports"));
}

// Whatever machine this is, looking at it ends with an answer to each question.
TEST(ThisMachine, IsLookedAtWithoutADaemon) {
  const auto checks = Examine(World::OfThisMachine({}), {});
  for (const Check& check : checks) EXPECT_THAT(check.found, Not(IsEmpty())) << check.name;
}

}  // namespace
}  // namespace oasiskv::oasisctl
