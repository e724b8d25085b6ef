// The best that the same machine does with the same sizes, measured in the same run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"

namespace oasiskv::bench {

struct CopyPiece {
  const std::byte* from = nullptr;
  std::byte* into = nullptr;
};

// Copies the pieces with memcpy, in order; gives the seconds it took.
double TimeMemcpy(std::span<const CopyPiece> pieces, size_t bytes_each);

struct UcxCeiling {
  double gbps = 0;
  std::string command;  // what was run
};

// What ucx_perftest runs over.
struct UcxRoute {
  std::string transports = "tcp";              // UCX_TLS
  std::string client_devices, daemon_devices;  // UCX_NET_DEVICES; empty: as the environment says

  bool rdma() const { return transports != "tcp"; }
};

// The route of a connection that describes itself so (Client::Describe): the family of the
// transport that it names ("ucx 10.0.0.1:7402, rc_mlx5/mlx5_0:1 ..."), TCP where it names none.
UcxRoute UcxRouteOf(const std::string& description);

// Runs `ucx_perftest -t TEST` on this host, `outstanding` operations of `bytes` each in flight, for
// about `seconds`. Tests: "ucp_get" (over TCP UCX's own emulated get) and "ucp_am_bw" (its active
// messages, one way). NOT_FOUND when ucx_perftest is not installed (Debian: ucx-utils).
absl::StatusOr<UcxCeiling> MeasureUcx(const UcxRoute& route, const std::string& test,
                                      uint64_t bytes, uint32_t outstanding, double seconds);

// The devices that ib_read_bw runs over: those of the client and of the daemon.
struct VerbsPorts {
  std::string client_device, daemon_device;  // empty: perftest's choice
  uint32_t port = 0;                         // 0: perftest's choice
  int64_t gid_index = -1;                    // -1: perftest's choice
};

// Thread contract: used by one thread.
//
// Runs ib_read_bw on this host between two devices, with as many reads of `bytes` in flight as the
// fetch has, spread over as many queue pairs as the client's connection has.
class VerbsCeiling {
 public:
  // A run is killed when it takes `patience` longer than four times what it was made for.
  VerbsCeiling(VerbsPorts port, uint64_t bytes, uint32_t outstanding,
               Duration patience = std::chrono::seconds(20))
      : port_(std::move(port)), bytes_(bytes), outstanding_(outstanding), patience_(patience) {}

  // GB/s of one run of about `seconds`. NOT_FOUND when ib_read_bw is not installed (Debian:
  // perftest), DEADLINE_EXCEEDED when it hung twice.
  absl::StatusOr<double> Round(double seconds);
  const std::string& command() const { return command_; }  // of the last run

 private:
  absl::StatusOr<double> RunOnce(uint64_t iterations, Duration limit);

  const VerbsPorts port_;
  const uint64_t bytes_;
  const uint32_t outstanding_;
  const Duration patience_;
  double rate_ = 0;  // MiB/s of the last run
  std::string command_;
};

}  // namespace oasiskv::bench
