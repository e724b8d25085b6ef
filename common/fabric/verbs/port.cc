#include "common/fabric/verbs/port.h"

#include <net/if.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric::verbs {
namespace {

// Thread contract: used by one thread. The list of devices, which must live until one of them is
// opened.
class DeviceList {
 public:
  DeviceList() : devices_(::ibv_get_device_list(&count_)) {}
  ~DeviceList() {
    if (devices_ != nullptr) ::ibv_free_device_list(devices_);
  }
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;

  int size() const { return devices_ == nullptr ? 0 : count_; }
  ibv_device* operator[](int i) const { return devices_[i]; }

 private:
  int count_ = 0;
  ibv_device** devices_;
};

absl::string_view StateName(ibv_port_state state) {
  switch (state) {
    case IBV_PORT_ACTIVE:
      return "active";
    case IBV_PORT_INIT:
      return "initializing";
    case IBV_PORT_ARMED:
      return "armed";
    default:
      return "down";
  }
}

std::string PortsText(ibv_context* context) {
  ibv_device_attr limits{};
  if (::ibv_query_device(context, &limits) != 0) return "cannot be asked";
  std::vector<std::string> ports;
  for (int number = 1; number <= limits.phys_port_cnt; ++number) {
    ibv_port_attr port{};
    if (::ibv_query_port(context, static_cast<uint8_t>(number), &port) != 0) continue;
    ports.push_back(absl::StrCat("port ", number, " ", StateName(port.state)));
  }
  return ports.empty() ? "no port" : absl::StrJoin(ports, ", ");
}

// 0 when the device has no active port.
uint8_t FirstActivePort(ibv_context* context, int ports) {
  for (int number = 1; number <= ports; ++number) {
    ibv_port_attr port{};
    if (::ibv_query_port(context, static_cast<uint8_t>(number), &port) == 0 &&
        port.state == IBV_PORT_ACTIVE) {
      return static_cast<uint8_t>(number);
    }
  }
  return 0;
}

absl::StatusOr<std::vector<GidEntry>> ReadGids(ibv_context* context, uint8_t port,
                                               bool infiniband) {
  // As many as fit in the 64 KiB that one call can carry; entries that are empty take no room.
  std::vector<ibv_gid_entry> raw(2047);
  const ssize_t count = ::ibv_query_gid_table(context, raw.data(), raw.size(), 0);
  if (count < 0) {
    return MakeError(
        ErrorCode::kInternal,
        absl::StrCat("reading the GID table of ", ::ibv_get_device_name(context->device), ": ",
                     std::strerror(static_cast<int>(-count))));
  }
  std::vector<GidEntry> table;
  for (ssize_t i = 0; i < count; ++i) {
    // A queue pair could not name a later entry.
    if (raw[i].port_num != port || raw[i].gid_index > kMaxVerbsGidIndex) continue;
    GidEntry entry;
    entry.index = raw[i].gid_index;
    entry.type = infiniband ? GidType::kInfiniband : static_cast<GidType>(raw[i].gid_type);
    std::memcpy(entry.gid.data(), raw[i].gid.raw, entry.gid.size());
    char name[IF_NAMESIZE];
    if (raw[i].ndev_ifindex != 0 && ::if_indextoname(raw[i].ndev_ifindex, name) != nullptr) {
      entry.interface = name;
    }
    table.push_back(std::move(entry));
  }
  return table;
}

absl::Status Missing(absl::string_view what) {
  return MakeError(
      ErrorCode::kUnsupported,
      absl::StrCat(what, "; devices seen: ", DevicesSeen(),
                   " (--verbs_device names one; rdma-core's ibv_devices lists them too)"));
}

}  // namespace

std::string DevicesSeen() {
  const DeviceList devices;
  std::vector<std::string> seen;
  for (int i = 0; i < devices.size(); ++i) {
    const Context context(::ibv_open_device(devices[i]));
    seen.push_back(absl::StrCat(::ibv_get_device_name(devices[i]), " (",
                                context == nullptr
                                    ? absl::StrCat("cannot be opened: ", std::strerror(errno))
                                    : PortsText(context.get()),
                                ")"));
  }
  return seen.empty() ? "none" : absl::StrJoin(seen, ", ");
}

absl::StatusOr<Port> OpenPort(const VerbsPortOptions& options) {
  const DeviceList devices;
  Port port;
  for (int i = 0; i < devices.size(); ++i) {
    const std::string name = ::ibv_get_device_name(devices[i]);
    if (!options.device.empty() && options.device != name) continue;
    Context context(::ibv_open_device(devices[i]));
    if (context == nullptr) {
      if (options.device.empty()) continue;
      return MakeError(ErrorCode::kUnsupported, absl::StrCat("cannot open the RDMA device '", name,
                                                             "': ", std::strerror(errno)));
    }
    ibv_device_attr limits{};
    if (const int error = ::ibv_query_device(context.get(), &limits); error != 0) {
      return MakeError(ErrorCode::kInternal,
                       absl::StrCat("asking the RDMA device '", name,
                                    "' for its limits: ", std::strerror(error)));
    }
    const uint8_t active = FirstActivePort(context.get(), limits.phys_port_cnt);
    if (options.port > limits.phys_port_cnt) {
      if (options.device.empty()) continue;
      return MakeError(ErrorCode::kInvalidArgument,
                       absl::StrCat("--verbs_port=", options.port, ": the RDMA device '", name,
                                    "' has ", limits.phys_port_cnt, " port(s), from 1"));
    }
    if (options.port == 0 && active == 0 && options.device.empty()) continue;
    port.number = static_cast<uint8_t>(options.port != 0 ? options.port : active != 0 ? active : 1);
    port.device = name;
    port.limits = limits;
    port.context = std::move(context);
    break;
  }
  if (port.context == nullptr) {
    if (!options.device.empty()) {
      return Missing(absl::StrCat("there is no RDMA device '", options.device, "'"));
    }
    return Missing(options.port == 0 ? "no RDMA device has an active port"
                                     : absl::StrCat("no RDMA device has a port ", options.port));
  }
  if (const int error = ::ibv_query_port(port.context.get(), port.number, &port.attributes);
      error != 0) {
    return MakeError(ErrorCode::kInternal, absl::StrCat("asking for port ", port.number, " of '",
                                                        port.device, "': ", std::strerror(error)));
  }
  if (port.attributes.state != IBV_PORT_ACTIVE) {
    return Missing(absl::StrCat("port ", port.number, " of the RDMA device '", port.device, "' is ",
                                StateName(port.attributes.state)));
  }
  OASISKV_ASSIGN_OR_RETURN(port.gids, ReadGids(port.context.get(), port.number, port.infiniband()));
  port.wished_gid = options.gid_index;
  return port;
}

absl::StatusOr<GidChoice> Port::Choose(const PortAddress* peer) const {
  GidWish wish;
  wish.index = wished_gid;
  if (peer != nullptr && !infiniband()) wish.peer = GidWish::Peer{peer->gid_type, peer->gid};
  auto choice = ChooseGid(gids, static_cast<uint32_t>(attributes.gid_tbl_len), wish);
  if (!choice.ok()) {
    return Annotate(choice.status(),
                    absl::StrCat("port ", number, " of the RDMA device '", device, "'"));
  }
  return choice;
}

PortAddress Port::AddressWith(const GidEntry& gid) const {
  PortAddress address;
  address.gid = gid.gid;
  address.gid_type = gid.type;
  address.lid = attributes.lid;
  address.mtu_bytes = uint32_t{128} << attributes.active_mtu;
  return address;
}

ibv_mtu MtuOf(uint32_t bytes) {
  for (const ibv_mtu mtu : {IBV_MTU_4096, IBV_MTU_2048, IBV_MTU_1024, IBV_MTU_512}) {
    if (bytes >= uint32_t{128} << mtu) return mtu;
  }
  return IBV_MTU_256;
}

}  // namespace oasiskv::fabric::verbs
