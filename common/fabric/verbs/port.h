// Finding RDMA devices and opening a port of one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/fabric/verbs/gid.h"
#include "common/fabric/verbs/handles.h"
#include "common/fabric/verbs/hello.h"
#include "common/fabric/verbs/verbs.h"

namespace oasiskv::fabric::verbs {

// Thread contract: a move-only value.
//
// An opened device with the port that is used.
struct Port {
  Context context;
  std::string device;
  uint8_t number = 0;
  ibv_device_attr limits{};
  ibv_port_attr attributes{};
  std::vector<GidEntry> gids;
  int64_t wished_gid = -1;

  bool infiniband() const { return attributes.link_layer == IBV_LINK_LAYER_INFINIBAND; }
  // The GID to talk to `peer` with, or to anybody (null).
  absl::StatusOr<GidChoice> Choose(const PortAddress* peer) const;
  PortAddress AddressWith(const GidEntry& gid) const;
};

// Errors: as ServeVerbs.
absl::StatusOr<Port> OpenPort(const VerbsPortOptions& options);

// "rxe0 (port 1 active), mlx5_0 (port 1 down)"; "none" when there is no device.
std::string DevicesSeen();

// The path MTU of `bytes` bytes; 256 for a number that is not an MTU.
ibv_mtu MtuOf(uint32_t bytes);

}  // namespace oasiskv::fabric::verbs
