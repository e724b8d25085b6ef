// A machine made of files, for tests of the doctor.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "oasiskv/error.h"
#include "tools/oasisctl/doctor/check.h"

namespace oasiskv::oasisctl {

inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr uint64_t kGiB = uint64_t{1} << 30;

// Thread contract: used by one thread.
//
// The machine is a folder. At first it is in order, without RDMA, GPU or huge pages.
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

  // With one RoCE v2 GID at index 1, unless `gid` is empty, and the empty places of a real table.
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

}  // namespace oasiskv::oasisctl
