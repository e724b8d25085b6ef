// The two halves of the verbs fabric and its entry in the table. No verbs header.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/fabric/endpoint.h"
#include "common/fabric/fabric.h"

namespace oasiskv::fabric {

struct Fabric;

// What flags and options may say.
constexpr uint32_t kMaxVerbsPort = 255;
constexpr int64_t kMaxVerbsGidIndex = 255;  // a queue pair has 8 bits for it (ibv_global_route)

// Which port of which device.
struct VerbsPortOptions {
  std::string device;      // --verbs_device; empty: the first with an active port
  uint32_t port = 0;       // --verbs_port, from 1; 0: the device's first active one
  int64_t gid_index = -1;  // --verbs_gid_index; -1: chosen, see verbs/gid.h
};

struct VerbsOptions {
  VerbsPortOptions port;      // of this side
  Duration peer_patience{0};  // of a client: --verbs_peer_timeout; 0: VerbsConnectOptions's
};

// OK when such a port is there, is up and has a GID to talk with; the errors of ServeVerbs for the
// device otherwise. For asking before a pool is touched.
absl::Status CheckVerbsPort(const VerbsPortOptions& options);

struct VerbsEndpointOptions {
  VerbsPortOptions port;
  uint32_t max_connections = 1024;
  // How often each connected client is asked whether it is still there. Asking costs its CPU
  // nothing.
  Duration probe_interval = std::chrono::seconds(5);
};

// Registers every arena for readers (a key that cannot write) and for writers, and the grant-word
// table for reading. Errors: UNSUPPORTED (no device, or not the one named: lists those seen; no
// such port or it is down), CAPACITY (the limit on locked memory, or the device's on one
// registration: names limit, need and fix), INVALID_ARGUMENT (GID index).
absl::StatusOr<std::unique_ptr<Endpoint>> ServeVerbs(const VerbsEndpointOptions& options,
                                                     ExportedMemory memory,
                                                     GrantAuthority& authority);

struct VerbsConnectOptions {
  VerbsPortOptions port;
  uint64_t incarnation = 0;
  Access access = Access::kRead;
  uint32_t queue_pairs = 4;
  uint32_t max_rd_atomic = 16;  // reads in flight of one queue pair, if both devices can
  uint64_t window_bytes = uint64_t{8} << 20;  // in flight, over all batches of the connection
  // How long a batch that was cancelled, or whose deadline has passed, waits for what it has in
  // flight before it takes the queue pairs down that carry it. A batch's deadline is never exceeded
  // by more than a tenth of its time for this.
  Duration drain_patience = std::chrono::milliseconds(200);
  // A request that is not acknowledged for so long, with six repetitions, makes the connection
  // lost. Devices round up.
  Duration peer_patience = std::chrono::milliseconds(500);
  Duration keepalive =
      std::chrono::seconds(2);  // an idle connection looks so often whether the daemon is there
};

// Errors: those of ControlPlane::Accept and, for the device of this side, of ServeVerbs.
absl::StatusOr<std::unique_ptr<Connection>> ConnectVerbs(const VerbsConnectOptions& options,
                                                         std::shared_ptr<ControlPlane> control);

const Fabric& VerbsFabric();

}  // namespace oasiskv::fabric
