// The data plane as the daemon sees it: what a fabric's server half needs from the daemon, and what
// it offers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/fabric/fabric.h"
#include "oasiskv/ids.h"

namespace oasiskv::fabric {

// Ranges that a request named, resolved to memory, which stays the grant's while `pin` lives.
struct PinnedRanges {
  std::vector<std::span<std::byte>> memory;  // one per asked range, in order
  std::shared_ptr<const void> pin;
};

// Thread contract: safe for concurrent use.
//
// The daemon's word on grants, implemented by server/lease. It must outlive every Endpoint that was
// given it.
class GrantAuthority {
 public:
  virtual ~GrantAuthority() = default;
  // Checks grant, epoch, direction, sequence state, bounds (a range lies inside one frame's
  // frame_bytes, not empty, not wrapped) and, for reads, that every layer the range touches is
  // committed and every entry or summary lies in the attached heads; for writes, that nothing of it
  // is committed. Errors: NOT_FOUND, STALE, LEASE_EXPIRED, PERMISSION_DENIED, OUT_OF_RANGE (naming
  // the index), NOT_COMMITTED, FOREIGN, WRONG_STATE.
  virtual absl::StatusOr<PinnedRanges> Authorize(GrantId grant, Epoch epoch, Access access,
                                                 std::span<const RemoteRange> ranges) = 0;
  // The grant word as a reader would see it now; 0 for an unknown grant.
  virtual uint64_t GrantWord(GrantId grant) const = 0;
  // The writer on `connection` promises to write no more under `grant`.
  virtual void WriterFenced(ConnectionId connection, GrantId grant) = 0;
  // A peer is being given memory that it can write through. Called before the peer learns the
  // connection's id; a grant for a connection that was not opened is refused, since nobody would
  // ever say that it is closed.
  virtual void ConnectionOpened(ConnectionId connection) {}
  // The peer of `connection` is gone and with it every mapping it had.
  virtual void ConnectionClosed(ConnectionId connection) = 0;
};

// Memory that an Endpoint serves. The descriptors stay the owner's and must outlive the Endpoint.
struct ExportedMemory {
  struct Arena {
    ArenaId id;
    int fd = -1;
    std::byte* base = nullptr;
    uint64_t bytes = 0;
  };
  std::vector<Arena> arenas;  // by id, from 0
  int words_fd = -1;          // the grant-word table: uint64_t[word_count]
  uint64_t words_bytes = 0;
  uint64_t incarnation = 0;  // of the daemon; every connection's hello carries it
};

// Of a fabric that goes over several transports.
struct TransportCount {
  std::string transport;     // "tcp", "rc_verbs"
  uint64_t connections = 0;  // now
};

struct EndpointStats {
  uint64_t connections = 0;  // now
  uint64_t connections_total = 0;
  uint64_t connections_refused = 0;  // wrong user, bad hello
  uint64_t requests = 0;
  uint64_t requests_refused = 0;  // answered with an error
  uint64_t malformed = 0;         // not even parsable
  uint64_t bytes_read = 0;        // served to readers (one-sided reads are not seen)
  uint64_t bytes_written = 0;
  std::vector<TransportCount> transports;  // of ucx; those that had a connection
};

// Thread contract: safe for concurrent use.
//
// The serving half of one fabric: listens, owns its threads, stops in its destructor (bounded by a
// few seconds).
class Endpoint {
 public:
  virtual ~Endpoint() = default;
  virtual Kind kind() const = 0;
  // What DescribeResponse advertises: socket path, or host:port with the port really bound.
  virtual std::string address() const = 0;
  virtual EndpointStats Stats() const = 0;
};

}  // namespace oasiskv::fabric
