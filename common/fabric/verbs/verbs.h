// The two halves of the verbs fabric and what they need from their callers. No verbs header.
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
#include "common/fabric/verbs/hello.h"

namespace oasiskv::fabric {

// Which port of which device.
struct VerbsPortOptions {
  std::string device;      // --verbs_device; empty: the first with an active port
  uint32_t port = 0;       // --verbs_port, from 1; 0: the device's first active one
  int64_t gid_index = -1;  // --verbs_gid_index; -1: chosen, see verbs/gid.h
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

// Thread contract: safe for concurrent use.
//
// The daemon's half. The control plane carries the hellos, so there is nothing to listen on. Of
// reads and writes the daemon sees nothing. Whether a client still lives the endpoint finds out by
// itself (an empty RDMA write to each, now and then): once one is gone, its queue pairs are
// destroyed and the GrantAuthority hears ConnectionClosed.
class VerbsEndpoint : public Endpoint {
 public:
  // Connects queue pairs to those of the client. Blocks while the network resolves the client's
  // address (seconds when it does not answer). Errors: INVALID_ARGUMENT, STALE (another incarnation
  // is meant), CAPACITY, UNSUPPORTED (no GID of ours reaches the client's), PEER_LOST (the device
  // cannot reach it).
  virtual absl::StatusOr<verbs::ServerHello> Accept(const verbs::ClientHello& hello) = 0;
  // The writer has promised to write no more under `grant`. Ignored unless `connection` is a
  // writer's.
  virtual void Fence(ConnectionId connection, GrantId grant) = 0;
  // Ends a connection: for a client that says goodbye, and for a writer one of whose grants was
  // revoked and who has not fenced it. When this has returned, nothing of the client's reaches this
  // memory any more, and ConnectionClosed was called. False when there is no such connection.
  virtual bool Close(ConnectionId connection) = 0;
  // One line for people: device, port, GID and why that one; pages and time of the registration.
  virtual std::string Describe() const = 0;
};

// Registers every arena for readers (a key that cannot write) and for writers, and the grant-word
// table for reading. Errors: UNSUPPORTED (no device, or not the one named: lists those seen; no
// such port or it is down), CAPACITY (the limit on locked memory, or the device's on one
// registration: names limit, need and mend), INVALID_ARGUMENT (GID index).
absl::StatusOr<std::unique_ptr<VerbsEndpoint>> ServeVerbs(const VerbsEndpointOptions& options,
                                                          ExportedMemory memory,
                                                          GrantAuthority& authority);

// Thread contract: safe for concurrent use.
//
// The control plane as a verbs connection needs it: calls that end in the VerbsEndpoint of the
// daemon.
class VerbsControl {
 public:
  virtual ~VerbsControl() = default;
  virtual absl::StatusOr<verbs::ServerHello> Accept(const verbs::ClientHello& hello) = 0;
  virtual void Fence(ConnectionId connection, GrantId grant) = 0;
  virtual void Close(ConnectionId connection) = 0;
};

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

// Errors: those of VerbsControl::Accept and, for the device of this side, of ServeVerbs.
absl::StatusOr<std::unique_ptr<Connection>> ConnectVerbs(const VerbsConnectOptions& options,
                                                         std::shared_ptr<VerbsControl> control);

}  // namespace oasiskv::fabric
