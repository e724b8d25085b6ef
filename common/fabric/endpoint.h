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
#include "absl/strings/string_view.h"
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
// The daemon's word on grants, implemented by server/core. It must outlive every Endpoint that was
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
  // The daemon has put bytes into these ranges, which Authorize allowed for writing: they may be
  // committed now. Ignored when the grant has ended.
  virtual void Written(GrantId grant, Epoch epoch, std::span<const RemoteRange> ranges) = 0;
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
  std::vector<TransportCount> transports;  // where there are several; those that had a connection
};

// Thread contract: safe for concurrent use.
//
// The serving half of one fabric: listens, owns its threads, stops in its destructor (bounded by a
// few seconds).
class Endpoint {
 public:
  virtual ~Endpoint() = default;
  // The fabric's name in the table.
  virtual absl::string_view fabric() const = 0;
  // What DescribeResponse advertises: a socket path, host:port with the port really bound, a device
  // and its port.
  virtual std::string address() const = 0;
  // One line for people.
  virtual std::string Describe() const { return address(); }
  virtual EndpointStats Stats() const = 0;

  // Makes a connection for a client whose hello came over the control plane; gives the answer to
  // it. May block for seconds, while the network looks for the client. Errors: UNSUPPORTED (clients
  // of this fabric connect by themselves; or the client cannot be reached from here),
  // INVALID_ARGUMENT, STALE (another incarnation is meant), CAPACITY, PEER_LOST.
  virtual absl::StatusOr<std::string> Accept(absl::string_view hello);
  // The writer on `connection` has promised, over the control plane, to write no more under
  // `grant`. Ignored unless `connection` is a writer's.
  virtual void Fence(ConnectionId connection, GrantId grant) {}
  // Ends a connection: for a client that says goodbye, and for a writer that has not fenced a
  // revoked grant in time. When it has returned true, nothing of the client's reaches this memory
  // any more, and ConnectionClosed was called. False: there is no such connection, or it is one
  // that cannot be taken away (a mapping).
  virtual bool Close(ConnectionId connection) { return false; }
};

}  // namespace oasiskv::fabric
