// RDMA devices as the kernel lists them, also those that the verbs library cannot open.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/fabric/verbs/gid.h"
#include "tools/oasisctl/doctor/world.h"

namespace oasiskv::oasisctl {

// Thread contract: plain values.
struct RdmaPort {
  uint32_t number = 0;
  std::string state;       // "ACTIVE", "DOWN"
  std::string link_layer;  // "Ethernet", "InfiniBand"
  uint32_t gid_places = 0;
  std::vector<fabric::verbs::GidEntry> gids;  // without the empty ones

  bool active() const { return state == "ACTIVE"; }
};

struct RdmaDevice {
  std::string name;
  int64_t numa_node = -1;   // -1: none, or not known
  std::string device_file;  // "/dev/infiniband/uverbs0"; empty: there is none for programs
  std::vector<RdmaPort> ports;
};

std::vector<RdmaDevice> ReadRdmaDevices(const World& world);
bool AnyActive(const std::vector<RdmaDevice>& devices);

}  // namespace oasiskv::oasisctl
