#include "tools/oasisctl/doctor/rdma_devices.h"

#include <arpa/inet.h>

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace oasiskv::oasisctl {
namespace {

using fabric::verbs::GidEntry;
using fabric::verbs::GidType;

constexpr char kDevices[] = "/sys/class/infiniband/";

int64_t NumaNode(const World& world, const std::string& device) {
  std::vector<std::string> places = {absl::StrCat(kDevices, device, "/device/numa_node")};
  // A software device has no hardware, but the network interface below it may have.
  if (const auto parent = world.File(absl::StrCat(kDevices, device, "/parent"))) {
    places.push_back(absl::StrCat("/sys/class/net/", *parent, "/device/numa_node"));
  }
  for (const std::string& place : places) {
    if (const auto node = world.Number(place)) return static_cast<int64_t>(*node);
  }
  return -1;
}

std::string DeviceFile(const World& world, const std::string& device) {
  for (const std::string& name : world.Names("/sys/class/infiniband_verbs")) {
    if (world.File(absl::StrCat("/sys/class/infiniband_verbs/", name, "/ibdev")) == device) {
      return absl::StrCat("/dev/infiniband/", name);
    }
  }
  return "";
}

GidType TypeOf(const std::string& text, bool infiniband) {
  if (infiniband) return GidType::kInfiniband;
  return text == "RoCE v2" ? GidType::kRoceV2 : GidType::kRoceV1;
}

RdmaPort ReadPort(const World& world, const std::string& folder, uint32_t number) {
  RdmaPort port;
  port.number = number;
  port.state = world.File(folder + "/state").value_or("unknown");  // "4: ACTIVE"
  if (const size_t colon = port.state.find(": "); colon != std::string::npos) {
    port.state.erase(0, colon + 2);
  }
  port.link_layer = world.File(folder + "/link_layer").value_or("unknown");
  for (const std::string& name : world.Names(folder + "/gids")) {
    ++port.gid_places;
    GidEntry entry;
    const auto gid = world.File(absl::StrCat(folder, "/gids/", name));
    if (!absl::SimpleAtoi(name, &entry.index) || !gid.has_value() ||
        ::inet_pton(AF_INET6, gid->c_str(), entry.gid.data()) != 1 ||
        fabric::verbs::IsNullGid(entry.gid)) {
      continue;
    }
    entry.type = TypeOf(world.File(absl::StrCat(folder, "/gid_attrs/types/", name)).value_or(""),
                        port.link_layer == "InfiniBand");
    entry.interface = world.File(absl::StrCat(folder, "/gid_attrs/ndevs/", name)).value_or("");
    port.gids.push_back(std::move(entry));
  }
  return port;
}

}  // namespace

std::vector<RdmaDevice> ReadRdmaDevices(const World& world) {
  std::vector<RdmaDevice> devices;
  for (const std::string& name : world.Names("/sys/class/infiniband")) {
    RdmaDevice device;
    device.name = name;
    device.numa_node = NumaNode(world, name);
    device.device_file = DeviceFile(world, name);
    const std::string ports = absl::StrCat(kDevices, name, "/ports");
    for (const std::string& port : world.Names(ports)) {
      uint32_t number = 0;
      if (!absl::SimpleAtoi(port, &number)) continue;
      device.ports.push_back(ReadPort(world, absl::StrCat(ports, "/", port), number));
    }
    devices.push_back(std::move(device));
  }
  return devices;
}

bool AnyActive(const std::vector<RdmaDevice>& devices) {
  return std::any_of(devices.begin(), devices.end(), [](const RdmaDevice& device) {
    return std::any_of(device.ports.begin(), device.ports.end(),
                       [](const RdmaPort& port) { return port.active(); });
  });
}

}  // namespace oasiskv::oasisctl
