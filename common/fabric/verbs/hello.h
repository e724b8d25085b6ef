// What both sides of a verbs connection tell each other over the control plane before they connect
// their queue pairs. Plain values and their bytes; no verbs header.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/fabric/fabric.h"
#include "common/fabric/verbs/gid.h"
#include "oasiskv/ids.h"

namespace oasiskv::fabric::verbs {

constexpr uint32_t kHelloVersion = 1;
constexpr uint32_t kMaxQueuePairs = 16;
constexpr uint32_t kMaxHelloArenas = 4096;

// How to reach one side.
struct PortAddress {
  Gid gid{};
  GidType gid_type = GidType::kRoceV2;
  uint16_t lid = 0;  // InfiniBand only
  uint32_t mtu_bytes = 0;
  friend bool operator==(const PortAddress&, const PortAddress&) = default;
};

struct QueuePairAddress {
  uint32_t number = 0;  // 24 bits
  uint32_t psn = 0;     // of its first packet, 24 bits
  friend bool operator==(const QueuePairAddress&, const QueuePairAddress&) = default;
};

struct ClientHello {
  uint32_t version = kHelloVersion;
  uint64_t incarnation = 0;  // of the daemon that is meant
  Access access = Access::kRead;
  PortAddress port;
  uint32_t max_rd_atomic = 0;  // reads that a queue pair of the client may have in flight
  std::vector<QueuePairAddress> queue_pairs;
  friend bool operator==(const ClientHello&, const ClientHello&) = default;
};

// A registered stretch of the daemon's memory.
struct RemoteMemory {
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint32_t key = 0;
  friend bool operator==(const RemoteMemory&, const RemoteMemory&) = default;
};

struct ServerHello {
  uint32_t version = kHelloVersion;
  uint64_t incarnation = 0;
  ConnectionId connection;
  PortAddress port;
  uint32_t max_rd_atomic = 0;                 // agreed: the smaller of what both sides can do
  std::vector<QueuePairAddress> queue_pairs;  // in the order of the client's
  std::vector<RemoteMemory> arenas;           // by id; keys of the asked access
  RemoteMemory words;                         // the grant-word table, readable only
  friend bool operator==(const ServerHello&, const ServerHello&) = default;
};

// Bytes in an order of their own, whatever the host's. Parsing takes nothing on trust:
// INVALID_ARGUMENT for bytes that are no hello, end early or go on, UNSUPPORTED for another
// version, naming both.
std::string Serialize(const ClientHello& hello);
std::string Serialize(const ServerHello& hello);
absl::StatusOr<ClientHello> ParseClientHello(absl::string_view bytes);
absl::StatusOr<ServerHello> ParseServerHello(absl::string_view bytes);

}  // namespace oasiskv::fabric::verbs
