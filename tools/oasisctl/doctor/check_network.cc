// RDMA devices, UCX and GPUs.
#include <algorithm>
#include <array>

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

using fabric::verbs::GidEntry;
using fabric::verbs::GidType;
using Json = nlohmann::ordered_json;

std::string GidLine(const GidEntry& entry) {
  return absl::StrCat("GID ", entry.index, " ", fabric::verbs::GidTypeName(entry.type), " ",
                      fabric::verbs::GidText(entry.gid),
                      entry.interface.empty() ? "" : absl::StrCat(" (", entry.interface, ")"));
}

Json GidFacts(const GidEntry& entry) {
  return {{"index", entry.index},
          {"type", fabric::verbs::GidTypeName(entry.type)},
          {"address", fabric::verbs::GidText(entry.gid)},
          {"interface", entry.interface}};
}

bool CarriesNetwork(absl::string_view transport) {
  constexpr std::array<absl::string_view, 3> kWhole = {"all", "tcp", "ib"};
  constexpr std::array<absl::string_view, 3> kFamilies = {"rc", "ud", "dc"};
  const absl::string_view family = transport.substr(0, transport.find('_'));
  return std::find(kWhole.begin(), kWhole.end(), transport) != kWhole.end() ||
         std::any_of(kFamilies.begin(), kFamilies.end(), [&](absl::string_view known) {
           return family == known || transport == absl::StrCat(known, "x");
         });
}

// Devices that UCX_NET_DEVICES names and this machine does not have.
std::vector<std::string> MissingNetDevices(const World& world) {
  std::vector<std::string> missing;
  const std::string value = world.Variable("UCX_NET_DEVICES");
  if (absl::StartsWith(value, "^")) return missing;
  for (const absl::string_view entry : absl::StrSplit(value, ',', absl::SkipWhitespace())) {
    const std::string name(entry.substr(0, entry.find(':')));
    if (name == "all" || absl::StrContains(name, '*')) continue;
    if (!world.Exists("/sys/class/net/" + name) && !world.Exists("/sys/class/infiniband/" + name)) {
      missing.push_back(name);
    }
  }
  return missing;
}

// Whether the kernel lists a port that the verbs fabric could use.
bool AnyUsable(const std::vector<RdmaDevice>& devices) {
  for (const RdmaDevice& device : devices) {
    for (const RdmaPort& port : device.ports) {
      if (port.active() && fabric::verbs::ChooseGid(port.gids, port.gid_places, {}).ok()) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace

Check CheckRdmaDevices(const std::vector<RdmaDevice>& devices) {
  Check check{.name = "rdma_devices"};
  check.why = "verbs, and ucx over RDMA, need one; shm, and ucx over TCP, do not.";
  check.facts = {{"devices", Json::array()}};
  if (devices.empty()) {
    check.health = Health::kWarn;
    check.found = "no RDMA device";
    check.fix =
        "load the network card's RDMA driver (modprobe mlx5_ib, irdma, bnxt_re, ...). Without "
        "such a card, RDMA in software: modprobe rdma_rxe; rdma link add rxe0 type rxe netdev "
        "IFACE";
    return check;
  }
  std::vector<std::string> lines;
  for (const RdmaDevice& device : devices) {
    Json facts = {{"name", device.name},
                  {"numa_node", device.numa_node},
                  {"device_file", device.device_file},
                  {"ports", Json::array()}};
    for (const RdmaPort& port : device.ports) {
      lines.push_back(
          absl::StrCat(device.name, " port ", port.number, ": ", port.state, ", ", port.link_layer,
                       device.numa_node < 0 ? "" : absl::StrCat(", NUMA node ", device.numa_node),
                       port.gids.empty() ? ", no GID" : ""));
      Json gids = Json::array();
      for (const GidEntry& entry : port.gids) {
        lines.push_back("  " + GidLine(entry));
        gids.push_back(GidFacts(entry));
      }
      facts["ports"].push_back({{"number", port.number},
                                {"state", port.state},
                                {"link_layer", port.link_layer},
                                {"gids", std::move(gids)}});
    }
    if (device.ports.empty()) lines.push_back(device.name + ": no port");
    check.facts["devices"].push_back(std::move(facts));
  }
  check.found = absl::StrJoin(lines, "\n");
  if (!AnyActive(devices)) {
    check.health = Health::kWarn;
    check.fix =
        "no port is active. Ethernet: connect the cable and run 'ip link set IFACE up'. "
        "InfiniBand: a subnet manager (opensm) must run on the network. 'rdma link' shows the "
        "state";
  }
  return check;
}

Check CheckRdmaChoice(const World& world, const Wants& wants,
                      const std::vector<RdmaDevice>& devices) {
  Check check{.name = "rdma_choice"};
  check.why =
      "The device, port and GID that the verbs fabric would use; other hosts must reach them.";
  const auto& taken = world.verbs_port;
  if (!taken.ok()) {
    check.found = std::string(taken.status().message());
    const bool named =
        !wants.verbs.device.empty() || wants.verbs.port != 0 || wants.verbs.gid_index != -1;
    if (named) {
      check.health = Health::kFail;
      check.fix =
          "set the --verbs_ flags to a device, port and GID of rdma_devices, or leave "
          "them out";
    } else if (AnyUsable(devices)) {
      check.health = Health::kFail;
      std::vector<std::string> files;
      for (const RdmaDevice& device : devices) {
        if (!device.device_file.empty()) {
          files.push_back(absl::StrCat(device.device_file, world.CanReadAndWrite(device.device_file)
                                                               ? " can be opened"
                                                           : world.Exists(device.device_file)
                                                               ? " may not be opened by this user"
                                                               : " is missing"));
        }
      }
      check.fix = absl::StrCat(
          "the kernel has a usable port, but the verbs library does not use it: install "
          "ibverbs-providers (the library for the device), modprobe ib_uverbs, and let this user, "
          "or the container, open /dev/infiniband/uverbs* for writing",
          files.empty() ? "" : absl::StrCat(" (", absl::StrJoin(files, ", "), ")"));
    } else if (AnyActive(devices)) {
      check.health = Health::kWarn;
      check.fix = "give the port's interface an address: ip address add ADDRESS/BITS dev IFACE";
    } else {
      check.health = Health::kWarn;
      check.fix = "see rdma_devices; until then run the daemon with --fabrics=shm,ucx";
    }
    return check;
  }
  check.facts = {{"device", taken->device},
                 {"port", taken->port},
                 {"gid", GidFacts(taken->gid)},
                 {"max_registration_bytes", taken->max_registration_bytes}};
  check.found = absl::StrCat(taken->device, " port ", taken->port, ", GID ", taken->reason);
  std::vector<std::string> fixes;
  if (!taken->infiniband && fabric::verbs::IsLinkLocalGid(taken->gid.gid)) {
    fixes.push_back(
        "only hosts on the same link reach this GID, which is link-local: ip address add "
        "ADDRESS/BITS dev " +
        (taken->gid.interface.empty() ? "IFACE" : taken->gid.interface));
  }
  if (!taken->infiniband && taken->gid.type == GidType::kRoceV1) {
    fixes.push_back(
        "routers do not forward RoCE v1: enable RoCE v2 on the device (cma_roce_mode, firmware)");
  }
  if (taken->max_registration_bytes < wants.pool_bytes) {
    fixes.push_back(absl::StrCat("the device registers at most ",
                                 Size(taken->max_registration_bytes),
                                 " at a time: run the daemon with smaller --arena_bytes"));
  }
  check.fix = absl::StrJoin(fixes, "; ");
  if (!fixes.empty()) check.health = Health::kWarn;
  return check;
}

Check CheckUcx(const World& world) {
  Check check{.name = "ucx"};
  check.why =
      "UCX reads its variables in the daemon and in each client; they decide which networks it "
      "uses.";
  if (!world.ucx_version.ok()) {
    check.health = Health::kFail;
    check.found = absl::StrCat("UCX cannot be loaded: ", world.ucx_version.status().message());
    check.fix = "install libucx0 (Debian) or ucx, version 1.13 or later";
    return check;
  }
  check.found = absl::StrCat("UCX ", *world.ucx_version);
  check.facts = {{"version", *world.ucx_version}, {"variables", Json::object()}};
  std::vector<std::string> names, fixes;
  for (const auto& [name, value] : world.environment) {
    if (!absl::StartsWith(name, "UCX_")) continue;
    names.push_back(name);
    absl::StrAppend(&check.found, ", ", name, "=", value);
    check.facts["variables"][name] = value;
  }
  if (names.empty()) {
    absl::StrAppend(&check.found, ", no UCX_ variable is set");
    return check;
  }
  check.health = Health::kWarn;
  const std::string transports = world.Variable("UCX_TLS");
  const std::vector<absl::string_view> list =
      absl::StrSplit(transports, ',', absl::SkipWhitespace());
  if (!list.empty() && !absl::StartsWith(transports, "^") &&
      std::none_of(list.begin(), list.end(), CarriesNetwork)) {
    check.health = Health::kFail;
    fixes.push_back("UCX_TLS names no network transport: add tcp (or rc, ud, dc)");
  }
  if (const auto missing = MissingNetDevices(world); !missing.empty()) {
    check.health = Health::kFail;
    fixes.push_back(absl::StrCat("UCX_NET_DEVICES names devices that this machine does not have (",
                                 absl::StrJoin(missing, ", "), ")"));
  }
  fixes.push_back(absl::StrCat("unless you set them on purpose, to the same on all hosts: unset ",
                               absl::StrJoin(names, " ")));
  check.fix = absl::StrJoin(fixes, "; ");
  return check;
}

Check CheckGpu(const World& world, const std::vector<RdmaDevice>& devices) {
  Check check{.name = "gpu"};
  check.why =
      "The network can write entries straight into a GPU's memory if the GPU's driver lets RDMA "
      "devices use it; otherwise they go through host memory.";
  std::vector<std::string> models;
  for (const std::string& gpu : world.Names("/proc/driver/nvidia/gpus")) {
    std::string model = "NVIDIA GPU";
    for (const absl::string_view line :
         absl::StrSplit(world.File(absl::StrCat("/proc/driver/nvidia/gpus/", gpu, "/information"))
                            .value_or(""),
                        '\n')) {
      absl::string_view rest = line;
      if (absl::ConsumePrefix(&rest, "Model:"))
        model = std::string(absl::StripAsciiWhitespace(rest));
    }
    models.push_back(absl::StrCat(model, " (", gpu, ")"));
  }
  size_t device_files = 0;
  for (const std::string& name : world.Names("/dev")) {
    absl::string_view rest = name;
    uint32_t number = 0;
    if (absl::ConsumePrefix(&rest, "nvidia") && absl::SimpleAtoi(rest, &number)) ++device_files;
  }
  const bool peermem = world.Exists("/sys/module/nvidia_peermem");
  // Only the open kernel modules export memory as dma-buf.
  const bool open_modules = absl::StrContains(
      world.File("/proc/driver/nvidia/version").value_or(""), "Open Kernel Module");
  check.facts = {{"gpus", models},
                 {"device_files", device_files},
                 {"nvidia_peermem", peermem},
                 {"open_kernel_modules", open_modules}};
  if (models.empty() && device_files == 0) {
    check.found = "no NVIDIA GPU; a daemon needs none, since its pool is host memory";
    return check;
  }
  check.found = absl::StrCat(
      models.empty() ? absl::StrCat(device_files, " NVIDIA device file(s)")
                     : absl::StrJoin(models, ", "),
      peermem ? "; nvidia_peermem is loaded" : "; nvidia_peermem is not loaded",
      open_modules ? "; the open kernel modules export dma-buf"
                   : "; the kernel modules are not the open ones, so they do not export dma-buf");
  if (device_files == 0) {
    check.health = Health::kWarn;
    check.fix = "there is no /dev/nvidia0: run nvidia-modprobe; in a container: --gpus all";
  } else if (AnyActive(devices) && !peermem && !open_modules) {
    check.health = Health::kWarn;
    check.fix = "modprobe nvidia_peermem, or install the driver's open kernel modules";
  }
  return check;
}

Check CheckGpuDirect(const World& world) {
  Check check{.name = "gpudirect"};
  check.why =
      "With GPUDirect RDMA the RDMA device writes entries into a GPU's memory (dma-buf); without "
      "it they go through host memory.";
  const bool has_gpu = !world.Names("/proc/driver/nvidia/gpus").empty();
  const absl::Status direct = world.verbs_port.ok()
                                  ? world.verbs_port->device_memory
                                  : absl::Status(absl::StatusCode::kUnavailable,
                                                 "there is no RDMA device to ask; see rdma_choice");
  check.facts = {{"dmabuf", direct.ok()}, {"gpu", has_gpu}};
  check.found = direct.ok() ? absl::StrCat(world.verbs_port->device, " registers dma-buf memory")
                            : std::string(direct.message());
  if (has_gpu && world.verbs_port.ok() && !direct.ok()) {
    check.health = Health::kWarn;
    check.fix =
        "update what the message above names: rdma-core, the kernel or the RDMA device's driver";
  }
  return check;
}

}  // namespace oasiskv::oasisctl
