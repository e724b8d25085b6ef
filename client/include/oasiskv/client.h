// A process's connection to one daemon.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "oasiskv/buffer.h"
#include "oasiskv/export.h"
#include "oasiskv/geometry.h"
#include "oasiskv/producer.h"
#include "oasiskv/reader.h"

namespace oasiskv {

struct ClientOptions {
  std::string address = "127.0.0.1:7400";  // of the daemon's control port: host:port, [v6]:port
  // The name of a fabric, or "auto", which takes the first that is possible; Client::Describe says
  // which and why:
  //   shm    the daemon is on this host and serves it
  //   verbs  both sides have an RDMA device and the daemon serves it
  //   ucx    otherwise
  // A named fabric that cannot be used is an error, never replaced by another.
  std::string fabric = "auto";
  std::chrono::nanoseconds rpc_timeout = std::chrono::seconds(5);    // of each control call
  std::chrono::nanoseconds read_timeout = std::chrono::seconds(10);  // see Reader::DefaultDeadline
  std::chrono::nanoseconds lease{0};  // of every grant; 0: the daemon's default
  bool verify_checksums = false;      // check CRC32C of every entry where the writer gave them
  // verbs: this side's device, its port and the entry of the port's GID table.
  std::string verbs_device;      // empty: the first with an active port
  uint32_t verbs_port = 0;       // from 1; 0: the device's first active one
  int64_t verbs_gid_index = -1;  // -1: chosen, RoCE v2 and routable first
  // verbs: the connection is lost when a request is not acknowledged for so long; 0: half a second.
  std::chrono::nanoseconds verbs_peer_timeout{0};
};

struct ClientStats {
  uint64_t reads = 0, writes = 0;     // batches
  uint64_t pieces = 0, requests = 0;  // pieces asked for; requests after coalescing
  uint64_t bytes_read = 0, bytes_written = 0, request_bytes = 0;
  uint64_t grant_checks = 0;  // grant words looked at after data
  uint64_t stale_reads = 0, expired_reads = 0, deadline_reads = 0, failed_reads = 0;
  uint64_t checksums_verified = 0, checksum_failures = 0;
  uint64_t reconnects = 0;                 // sessions made after the first
  uint64_t renewals = 0, grants_lost = 0;  // lease keeper
  // Sums over `timed_reads` successful batches: checking and coalescing, handing work to the
  // fabric, and from there to the last byte and the grant check.
  uint64_t timed_reads = 0, prepare_ns = 0, post_ns = 0, wire_ns = 0;
  // verbs: bytes that moved straight to or from registered memory, and through a copy.
  uint64_t bytes_direct = 0, bytes_bounced = 0;
};

// Thread contract: safe for concurrent use. Producers and Readers made from it keep what they need
// alive and may outlive it.
//
// Owns the control channel, the data connection and one lease-keeper thread, which renews all
// grants of this client in one call. When the daemon restarts, old handles are STALE and the next
// Open or Attach connects again (with back-off).
class OASISKV_EXPORT Client {
 public:
  // Errors: PEER_LOST (unreachable), UNSUPPORTED (the named fabric is not served, or there is no
  // device for it; the message lists what there is), INVALID_ARGUMENT.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const ClientOptions& options);
  ~Client();

  // Errors: those of KvMemory.Open.
  absl::StatusOr<Producer> Open(const ProducerSpec& spec);
  // Errors: those of KvMemory.Attach; a wait ends at the latest after spec.wait_for_seal.
  absl::StatusOr<Reader> Attach(const ReaderSpec& spec);
  // The requests of these sequences have ended: no reader can attach any more, and frames are freed
  // when their last reader is gone. Returns how many of the sequences existed.
  absl::StatusOr<uint32_t> ReleaseSequences(const std::vector<std::string>& names,
                                            const Identity& identity);
  // Throws the sequence away: revokes all its grants at once. Returns how many were revoked.
  absl::StatusOr<uint32_t> Abort(const std::string& name, const Identity& identity,
                                 const std::string& reason);

  // With verbs, fetches into `memory` then need no copy, see RegisteredBuffer. Without a connection
  // it is registered on the next. Errors: INVALID_ARGUMENT, CAPACITY (the limit on locked memory;
  // the message has the limit, what is needed and how to raise it), INTERNAL.
  absl::StatusOr<RegisteredBuffer> RegisterBuffer(std::span<std::byte> memory);

  // OK, or PEER_LOST with what is known about the loss.
  absl::Status Health() const;
  // One line: daemon, version, fabric and why it was chosen.
  std::string Describe() const;
  // The fabric of the current connection, "shm", "verbs" or "ucx"; empty while there is none.
  std::string FabricName() const;
  ClientStats Stats() const;

 private:
  class OASISKV_HIDDEN Impl;
  explicit Client(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace oasiskv
