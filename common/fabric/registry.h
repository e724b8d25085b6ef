// The table of fabrics: what daemon, client and tools know of each. A new fabric is a folder, its
// options in FabricOptions, and its entry in registry.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/address.h"
#include "common/clock.h"
#include "common/fabric/endpoint.h"
#include "common/fabric/fabric.h"
#include "common/fabric/shm/shm.h"
#include "common/fabric/ucx/ucx.h"
#include "common/fabric/verbs/verbs.h"

namespace oasiskv::fabric {

// What can be set of each fabric: by the daemon's flags for serving, by the client's options for
// connecting.
struct FabricOptions {
  ShmOptions shm;
  UcxOptions ucx;
  VerbsOptions verbs;
  uint16_t control_port = 0;  // of the daemon that serves, as bound: it is in default names
};

// An endpoint of a daemon, as Describe tells it.
struct EndpointInfo {
  std::string fabric;       // the entry's name
  std::string address;      // Endpoint::address
  std::string description;  // Endpoint::Describe
};

// To which endpoint of which daemon a client connects.
struct ConnectTarget {
  EndpointInfo endpoint;
  std::string control_address;  // of the daemon, as the client was given it
  uint64_t incarnation = 0;
  Access access = Access::kRead;
  Duration timeout{0};
  std::shared_ptr<ControlPlane> control;  // to that daemon
};

// Thread contract: constant; the functions are safe for concurrent use.
struct Fabric {
  absl::string_view name;    // in --fabrics, ClientOptions.fabric, metrics and on the wire
  absl::string_view reason;  // why a client takes it by itself, for people
  // A writer writes to the memory itself, over a connection of its own with a connection id; else
  // the daemon checks each write, and writers share the readers' connection.
  bool writer_connection = false;
  // Where it would listen, for fabrics that listen on a port; flags name it --NAME_address. Null:
  // on none.
  Address (*port)(const FabricOptions& options) = nullptr;
  // The daemon's side, before the pool is made, which takes long: OK when Serve could do it. Errors
  // name the flag.
  absl::Status (*check_serve)(const FabricOptions& options) = nullptr;
  // Errors: those of check_serve, and what registering the memory may meet.
  absl::StatusOr<std::unique_ptr<Endpoint>> (*serve)(const FabricOptions& options,
                                                     ExportedMemory memory,
                                                     GrantAuthority& authority) = nullptr;
  // The client's side: OK when this machine can use the fabric at all, whatever the daemon serves.
  absl::Status (*check_connect)(const FabricOptions& options) = nullptr;
  // Errors: PEER_LOST, STALE (another incarnation), PERMISSION_DENIED, UNSUPPORTED.
  absl::StatusOr<std::unique_ptr<Connection>> (*connect)(const FabricOptions& options,
                                                         const ConnectTarget& target) = nullptr;
};

// Every fabric of this process, in the order in which clients prefer them.
std::span<const Fabric* const> Fabrics();
// Null: there is none of that name.
const Fabric* FindFabric(absl::string_view name);
// "shm, verbs and ucx"
std::string FabricNames();
// Adds one behind the others, for a program that brings a fabric of its own; `fabric` must live
// for ever. Before the first daemon or client of the process is made.
void AddFabric(const Fabric* fabric);

}  // namespace oasiskv::fabric
