// Memory: is there enough, in huge pages, and may it be locked?
#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tools/oasisctl/doctor/check.h"
#include "tools/oasisctl/format.h"

namespace oasiskv::oasisctl {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
// Grant words and the network's own buffers, beside the pool.
constexpr uint64_t kLockedBesidePool = 16 * kMiB;
constexpr uint64_t kGoodShm = 64 * kMiB;

std::string LimitText(uint64_t limit) { return limit == kUnlimited ? "unlimited" : Size(limit); }

// JSON has no infinity.
nlohmann::ordered_json LimitFact(uint64_t limit) {
  return limit == kUnlimited ? nlohmann::ordered_json("unlimited") : nlohmann::ordered_json(limit);
}

// Huge pages of the default size, which the daemon uses.
struct HugePagesSeen {
  uint64_t page_bytes, total, free;
  // Whether all of a pool of `bytes` fits into the free ones.
  bool Hold(uint64_t bytes) const {
    return page_bytes != 0 && bytes % page_bytes == 0 && free >= bytes / page_bytes;
  }
};

HugePagesSeen ReadHugePages(const World& world) {
  const auto field = [&](const char* key) { return world.Field("/proc/meminfo", key).value_or(0); };
  return {field("Hugepagesize"), field("HugePages_Total"), field("HugePages_Free")};
}

bool TakesHugePages(const World& world, const Wants& wants) {
  return wants.huge_pages != HugePages::kOff && ReadHugePages(world).Hold(wants.pool_bytes);
}

// What is left under the memory limits of this process's control group and the groups above it; the
// smallest counts.
std::optional<uint64_t> LeftOfControlGroup(const World& world) {
  std::optional<uint64_t> left;
  for (const absl::string_view line :
       absl::StrSplit(world.File("/proc/self/cgroup").value_or(""), '\n')) {
    if (!absl::StartsWith(line, "0::/")) continue;
    std::string group(line.substr(3));
    while (!group.empty()) {
      if (group == "/") group.clear();
      const std::string folder = absl::StrCat("/sys/fs/cgroup", group);
      const auto limit = world.Number(folder + "/memory.max");  // may be "max"
      const auto used = world.Number(folder + "/memory.current");
      if (limit.has_value()) {
        const uint64_t rest = *limit - std::min(*limit, used.value_or(0));
        left = std::min(left.value_or(rest), rest);
      }
      group.erase(std::min(group.rfind('/'), group.size()));
    }
  }
  return left;
}

// CAP_IPC_LOCK (bit 14 of the effective set): the limit on locked memory does not apply.
bool MayLockAnyway(const World& world) {
  for (const absl::string_view line :
       absl::StrSplit(world.File("/proc/self/status").value_or(""), '\n')) {
    uint64_t set = 0;
    if (absl::StartsWith(line, "CapEff:") &&
        absl::SimpleHexAtoi(absl::StripAsciiWhitespace(line.substr(7)), &set)) {
      return (set >> 14 & 1) != 0;
    }
  }
  return false;
}

}  // namespace

Check CheckMemory(const World& world, const Wants& wants) {
  Check check{.name = "memory"};
  check.why = "The daemon touches its whole pool at start, so that no page is missing later.";
  const auto available = world.Field("/proc/meminfo", "MemAvailable");
  const auto group = LeftOfControlGroup(world);
  if (!available.has_value()) {
    check.health = Health::kWarn;
    check.found = "/proc/meminfo does not say how much memory is available";
    check.fix = "mount /proc";
    return check;
  }
  const uint64_t left = std::min(*available, group.value_or(kUnlimited));
  const bool huge = TakesHugePages(world, wants);
  check.facts = {{"available_bytes", *available},
                 {"control_group_left_bytes", LimitFact(group.value_or(kUnlimited))},
                 {"pool_bytes", wants.pool_bytes},
                 {"pool_in_huge_pages", huge}};
  check.found = absl::StrCat(
      Size(*available), " available",
      group.has_value() ? absl::StrCat(", ", Size(*group), " left in the control group") : "",
      ", the pool needs ", Size(wants.pool_bytes),
      huge ? " (from huge pages that are reserved already)" : "");
  if (!huge && wants.pool_bytes > left) {
    check.health = Health::kFail;
    check.fix = absl::StrCat("lower --pool_bytes below ", left / kMiB,
                             "MiB, stop other "
                             "programs, or raise the container's limit (MemoryMax=, --memory)");
  }
  return check;
}

Check CheckHugePages(const World& world, const Wants& wants) {
  Check check{.name = "huge_pages"};
  check.why =
      "With huge pages, registering the pool and each client's first access are fast, and there "
      "are fewer page tables and TLB misses.";
  const HugePagesSeen seen = ReadHugePages(world);
  check.facts = {{"page_bytes", seen.page_bytes},
                 {"total", seen.total},
                 {"free", seen.free},
                 {"pool_bytes", wants.pool_bytes}};
  const Health lack = wants.huge_pages == HugePages::kRequire ? Health::kFail : Health::kWarn;
  if (seen.page_bytes == 0) {
    check.health = lack;
    check.found = "this kernel has none (no Hugepagesize in /proc/meminfo)";
    check.fix = "boot a kernel with CONFIG_HUGETLBFS, or run with --huge_pages=off";
    return check;
  }
  const uint64_t needed = (wants.pool_bytes + seen.page_bytes - 1) / seen.page_bytes;
  check.facts["needed"] = needed;
  check.found = absl::StrCat(seen.free, " of ", seen.total, " free, ", Size(seen.page_bytes),
                             " each; a pool of ", Size(wants.pool_bytes), " needs ", needed);
  for (const std::string& name : world.Names("/sys/kernel/mm/hugepages")) {
    absl::string_view rest = name;
    uint64_t kib = 0;
    if (!absl::ConsumePrefix(&rest, "hugepages-") || !absl::ConsumeSuffix(&rest, "kB") ||
        !absl::SimpleAtoi(rest, &kib) || kib * 1024 == seen.page_bytes) {
      continue;
    }
    const std::string folder = absl::StrCat("/sys/kernel/mm/hugepages/", name);
    const uint64_t total = world.Number(folder + "/nr_hugepages").value_or(0);
    if (total == 0) continue;
    absl::StrAppend(&check.found, "; ", total, " of ", Size(kib * 1024),
                    ", which is not the default size (kernel parameter default_hugepagesz)");
  }
  if (wants.huge_pages == HugePages::kOff || seen.Hold(wants.pool_bytes)) return check;
  check.health = lack;
  if (wants.pool_bytes % seen.page_bytes != 0) {
    check.fix = absl::StrCat("make --pool_bytes a multiple of ", Size(seen.page_bytes));
    return check;
  }
  // Pages can only be reserved from available memory, which does not include reserved ones.
  if ((needed - std::min(needed, seen.free)) * seen.page_bytes >
      world.Field("/proc/meminfo", "MemAvailable").value_or(kUnlimited)) {
    check.fix = "there is not enough memory to reserve: lower --pool_bytes";
    return check;
  }
  const uint64_t raise = seen.total + needed - seen.free;
  check.fix = absl::StrCat("sysctl -w vm.nr_hugepages=", raise,
                           " (soon after boot, before memory is fragmented; to keep it "
                           "after a reboot, put vm.nr_hugepages=",
                           raise,
                           " into /etc/sysctl.d/60-oasiskv.conf), then run the daemon with "
                           "--huge_pages=prefer or require");
  return check;
}

Check CheckLockedMemory(const World& world, const Wants& wants,
                        const std::vector<RdmaDevice>& devices) {
  Check check{.name = "locked_memory"};
  check.why =
      "RDMA locks the memory it registers: the pool twice (for readers and for writers). This is "
      "the limit of this process; a daemon under systemd or in a container has its own.";
  const uint64_t need = 2 * wants.pool_bytes + kLockedBesidePool;
  const uint64_t limit = world.locked_memory.soft;
  const bool free_of_it = MayLockAnyway(world);
  check.facts = {{"soft_bytes", LimitFact(limit)},
                 {"hard_bytes", LimitFact(world.locked_memory.hard)},
                 {"needed_bytes", need},
                 {"ipc_lock", free_of_it},
                 {"rdma", AnyActive(devices)}};
  check.found =
      absl::StrCat("RLIMIT_MEMLOCK is ", LimitText(limit), ", the verbs fabric needs ", Size(need));
  if (limit >= need) return check;
  if (free_of_it) {
    absl::StrAppend(&check.found,
                    "; the limit does not apply to this process, which has the capability "
                    "IPC_LOCK (root), but it does apply to a daemon that runs as another user");
    return check;
  }
  if (!AnyActive(devices)) {
    absl::StrAppend(&check.found, "; no RDMA port is active, so nothing locks memory here");
    return check;
  }
  check.health = Health::kFail;
  check.fix = absl::StrCat(
      "under systemd: LimitMEMLOCK=infinity in [Service] of the unit; in a container: --ulimit "
      "memlock=-1 or the capability IPC_LOCK; in this shell: 'ulimit -l unlimited'",
      world.locked_memory.hard >= need
          ? ""
          : absl::StrCat(" after raising it in /etc/security/limits.d (the hard limit is ",
                         LimitText(world.locked_memory.hard), ")"));
  return check;
}

Check CheckOvercommit(const World& world, const Wants& wants) {
  Check check{.name = "overcommit"};
  check.why = "With strict accounting the kernel refuses memory beyond a fixed limit.";
  const uint64_t mode = world.Number("/proc/sys/vm/overcommit_memory").value_or(0);
  const uint64_t limit = world.Field("/proc/meminfo", "CommitLimit").value_or(0);
  const uint64_t committed = world.Field("/proc/meminfo", "Committed_AS").value_or(0);
  const uint64_t left = limit - std::min(limit, committed);
  check.facts = {{"mode", mode}, {"left_bytes", LimitFact(mode == 2 ? left : kUnlimited)}};
  check.found = absl::StrCat("vm.overcommit_memory is ", mode);
  if (mode != 2) return check;
  absl::StrAppend(&check.found, " (strict), ", Size(left), " are left below CommitLimit");
  if (left < wants.pool_bytes && !TakesHugePages(world, wants)) {
    check.health = Health::kFail;
    check.fix = "sysctl -w vm.overcommit_memory=0, or raise vm.overcommit_ratio";
  }
  return check;
}

Check CheckDevShm(const World& world) {
  Check check{.name = "dev_shm"};
  check.why =
      "UCX passes messages between processes of one host through /dev/shm. The pool is not there "
      "(it is anonymous memory), so /dev/shm may be smaller than the pool.";
  const auto free = world.free_bytes(world.root + "/dev/shm");
  if (!world.Exists("/dev/shm") || !free.has_value()) {
    check.health = Health::kWarn;
    check.found = "there is no /dev/shm";
    check.fix = "mount -t tmpfs -o mode=1777 tmpfs /dev/shm";
    return check;
  }
  check.facts = {{"free_bytes", *free}, {"wanted_bytes", kGoodShm}};
  check.found = absl::StrCat("/dev/shm has ", Size(*free), " free");
  if (*free < kGoodShm) {
    check.health = Health::kWarn;
    check.fix = "mount -o remount,size=1G /dev/shm; in a container: --shm-size=1g";
  }
  return check;
}

Check CheckNuma(const World& world, const Wants& wants, const std::vector<RdmaDevice>& devices) {
  Check check{.name = "numa"};
  check.why =
      "A device reads memory of its own node faster than memory of another node, and shares the "
      "link between nodes with the CPUs.";
  std::vector<std::string> nodes;
  std::optional<uint64_t> free_near_nic;
  int64_t nic = -1;
  if (world.verbs_port.ok()) {
    for (const RdmaDevice& device : devices) {
      if (device.name == world.verbs_port->device) nic = device.numa_node;
    }
  }
  check.facts = {{"nodes", nlohmann::ordered_json::array()}, {"rdma_node", nic}};
  for (const std::string& name : world.Names("/sys/devices/system/node")) {
    absl::string_view number = name;
    int64_t node = 0;
    if (!absl::ConsumePrefix(&number, "node") || !absl::SimpleAtoi(number, &node)) continue;
    const std::string folder = absl::StrCat("/sys/devices/system/node/", name);
    const auto free = world.Field(folder + "/meminfo", "MemFree");
    nodes.push_back(absl::StrCat("node ", node, " (", Size(free.value_or(0)), " free, CPUs ",
                                 world.File(folder + "/cpulist").value_or("none"), ")"));
    check.facts["nodes"].push_back({{"node", node}, {"free_bytes", free.value_or(0)}});
    if (node == nic) free_near_nic = free;
  }
  if (nodes.empty()) {
    check.found = "this kernel lists no NUMA nodes";
    return check;
  }
  check.found = absl::StrJoin(nodes, ", ");
  if (nodes.size() == 1) return check;
  if (nic < 0) {
    absl::StrAppend(&check.found, "; the node of the RDMA device is not known, or there is none");
    return check;
  }
  absl::StrAppend(&check.found, "; ", world.verbs_port->device, " is on node ", nic);
  if (wants.numa_node != nic) {
    check.health = Health::kWarn;
    check.fix = absl::StrCat("run the daemon with --numa_node=", nic);
  } else if (!TakesHugePages(world, wants) && free_near_nic.value_or(0) < wants.pool_bytes) {
    check.health = Health::kWarn;
    check.fix = absl::StrCat("free memory of node ", nic,
                             ", or lower --pool_bytes: the pool needs ", Size(wants.pool_bytes),
                             ", the node has ", Size(free_near_nic.value_or(0)), " free");
  }
  return check;
}

}  // namespace oasiskv::oasisctl
