// One daemon in one object: control port, memory, data plane, metrics, and the order of their
// starting and stopping.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "common/fabric/registry.h"
#include "server/options/options.h"

namespace oasiskv::server {

// The addresses that were bound.
struct BoundAddresses {
  std::string control_address;
  std::string metrics_address;                  // empty: not served
  std::vector<fabric::EndpointInfo> endpoints;  // of the data plane, from Serve on

  // The address of one of them; empty: that fabric is not served.
  std::string endpoint(absl::string_view fabric) const;
};

// Thread contract: Listen, Serve, the drain calls and the destructor are called by one thread at a
// time; the rest is safe for concurrent use.
//
// Starting has two steps, since touching a large pool takes long. After Listen the daemon answers
// (NOT_SERVING), and every port that it needs was found free; after Serve it serves. The destructor
// undoes both in reverse order.
class Daemon {
 public:
  // Errors name the flag: ALREADY_EXISTS (a port or the socket is taken), INVALID_ARGUMENT,
  // PERMISSION_DENIED. Nothing listens then.
  static absl::StatusOr<std::unique_ptr<Daemon>> Listen(const Options& options);
  ~Daemon();

  // Makes the pool and the data plane; then health is SERVING. Errors: those of KvCore::Create and
  // of the fabrics; after one, the daemon can only be destroyed.
  absl::Status Serve();

  // Control and metrics are set after Listen, all after Serve.
  const BoundAddresses& bound() const;
  // 0 before Serve.
  uint64_t incarnation() const;
  // The core; null before Serve.
  KvCore* core();

  // Health is NOT_SERVING and new opens are refused; what is there can be attached and read.
  void BeginDrain();
  // Waits until no sequence and no grant is left (true) or `timeout` has passed (false).
  bool WaitDrained(Duration timeout);

 private:
  struct Impl;
  explicit Daemon(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace oasiskv::server
