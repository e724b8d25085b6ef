// Limits of the kernel and the process, and the socket and ports that the daemon takes.
#include <sys/un.h>

#include <algorithm>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/fabric/ucx/ucx.h"
#include "tools/oasisctl/doctor/check.h"

namespace oasiskv::oasisctl {
namespace {

constexpr uint64_t kGoodMaps = 65530;      // the kernel's default
constexpr uint64_t kGoodOpenFiles = 4096;  // 1,024 shm clients, as many over ucx, and gRPC's own
constexpr uint64_t kGoodSystemFiles = 65536;

std::set<uint16_t> ListeningPorts(const World& world) {
  std::set<uint16_t> ports;
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    for (const absl::string_view line : absl::StrSplit(world.File(path).value_or(""), '\n')) {
      // "0: 0100007F:1CE8 00000000:0000 0A ...", 0A being LISTEN
      const std::vector<absl::string_view> words =
          absl::StrSplit(line, ' ', absl::SkipWhitespace());
      if (words.size() < 4 || words[3] != "0A") continue;
      const std::vector<absl::string_view> address = absl::StrSplit(words[1], ':');
      uint32_t port = 0;
      if (address.size() == 2 && absl::SimpleHexAtoi(address[1], &port)) {
        ports.insert(static_cast<uint16_t>(port));
      }
    }
  }
  return ports;
}

}  // namespace

Check CheckMapCount(const World& world) {
  Check check{.name = "max_map_count"};
  check.why = "Each arena, connection and RDMA registration needs mappings.";
  const auto count = world.Number("/proc/sys/vm/max_map_count");
  check.facts = {{"max_map_count", count.value_or(0)}, {"wanted", kGoodMaps}};
  check.found = count.has_value() ? absl::StrCat("vm.max_map_count is ", *count)
                                  : "vm.max_map_count cannot be read";
  if (count.value_or(0) < kGoodMaps) {
    check.health = Health::kWarn;
    check.fix = absl::StrCat("sysctl -w vm.max_map_count=", kGoodMaps);
  }
  return check;
}

Check CheckOpenFiles(const World& world) {
  Check check{.name = "open_files"};
  check.why = "The daemon needs a few descriptors for each client, and takes up to 1,024 shm ones.";
  const uint64_t limit = world.open_files.soft;
  const auto system = world.Number("/proc/sys/fs/file-max");
  const bool unlimited = limit == kUnlimited;
  check.facts = {{"wanted", kGoodOpenFiles}, {"system_max", system.value_or(0)}};
  check.facts["soft"] =
      unlimited ? nlohmann::ordered_json("unlimited") : nlohmann::ordered_json(limit);
  check.found =
      absl::StrCat("RLIMIT_NOFILE is ", unlimited ? "unlimited" : absl::StrCat(limit),
                   ", fs.file-max is ", system.has_value() ? absl::StrCat(*system) : "unknown");
  std::vector<std::string> fixes;
  if (limit < kGoodOpenFiles) {
    fixes.push_back(
        "under systemd: LimitNOFILE=65536 in the unit; in this shell: 'ulimit -n 65536'");
  }
  if (system.value_or(kGoodSystemFiles) < kGoodSystemFiles) {
    fixes.push_back(absl::StrCat("sysctl -w fs.file-max=", 16 * kGoodSystemFiles));
  }
  check.fix = absl::StrJoin(fixes, "; ");
  if (!fixes.empty()) check.health = Health::kWarn;
  return check;
}

Check CheckShmSocket(const World& world) {
  Check check{.name = "shm_socket"};
  check.why = "Clients on this host connect to the daemon through a socket file.";
  const std::string name = absl::StrCat("/oasiskvd-", kControlPort, ".sock");
  // In the daemon's order.
  std::vector<std::string> folders = {"/run/oasiskv"};
  if (const std::string own = world.Variable("XDG_RUNTIME_DIR"); own.starts_with('/')) {
    folders.push_back(own);
  }
  folders.push_back("/tmp");
  std::vector<std::string> seen;
  std::string taken;
  for (const std::string& folder : folders) {
    const bool good = world.CanMakeFilesIn(folder);
    seen.push_back(absl::StrCat(folder, good                   ? " can be written to"
                                        : world.Exists(folder) ? " may not be written by this user"
                                                               : " is missing"));
    if (good && taken.empty()) taken = folder + name;
  }
  check.facts = {{"path", taken}, {"exists", !taken.empty() && world.Exists(taken)}};
  check.found = absl::StrJoin(seen, ", ");
  if (taken.empty()) {
    check.health = Health::kFail;
    check.fix =
        "under systemd: RuntimeDirectory=oasiskv in the unit; or as root: install -d -o USER "
        "/run/oasiskv";
    return check;
  }
  absl::StrAppend(&check.found, "; the daemon would use ", taken,
                  world.Exists(taken) ? " (which exists: a daemon runs, or one died; then the file "
                                        "is replaced)"
                                      : "");
  if (taken.size() >= sizeof(sockaddr_un::sun_path)) {
    check.health = Health::kFail;
    check.fix = absl::StrCat("set --shm_socket to a shorter path, at most ",
                             sizeof(sockaddr_un::sun_path) - 1, " bytes");
  }
  return check;
}

Check CheckPorts(const World& world) {
  Check check{.name = "ports"};
  check.why = "The daemon listens on these ports by default, and only one program can use a port.";
  const std::set<uint16_t> busy = ListeningPorts(world);
  std::vector<std::string> all, fixes;
  const auto look = [&](absl::string_view flag, absl::string_view what, uint16_t port) {
    const bool is_busy = busy.contains(port);
    all.push_back(absl::StrCat(port, " (", what, ") ", is_busy ? "taken" : "free"));
    check.facts[absl::StrCat(what)] = {{"port", port}, {"taken", is_busy}};
    if (is_busy) fixes.push_back(absl::StrCat("--", flag, "=127.0.0.1:0"));
  };
  look("control_address", "control", kControlPort);
  look("metrics_address", "metrics", kMetricsPort);
  look("ucx_address", "ucx", fabric::UcxOptions().address.port);
  check.found = absl::StrJoin(all, ", ");
  if (!world.Exists("/proc/net/tcp") && !world.Exists("/proc/net/tcp6")) {
    check.health = Health::kWarn;
    check.found = "/proc/net/tcp cannot be read, so it is not known which ports are taken";
    check.fix = "mount /proc";
  } else if (!fixes.empty()) {
    check.health = Health::kWarn;
    check.fix = absl::StrCat(
        "run 'oasisctl health' to see if a daemon runs already; a second one needs other ports: ",
        absl::StrJoin(fixes, " "));
  }
  return check;
}

}  // namespace oasiskv::oasisctl
