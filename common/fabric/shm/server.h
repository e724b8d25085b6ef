// The daemon's half of the shm fabric: hands out descriptors and hears about fences and closed
// connections.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/fabric/endpoint.h"
#include "common/fabric/shm/memory_socket.h"
#include "common/fabric/shm/shm.h"
#include "common/log.h"
#include "common/mapped_memory.h"

namespace oasiskv::fabric::shm {

struct ServerLimits {
  size_t max_connections = 1024;                     // those that have not said hello count too
  Duration hello_timeout = std::chrono::seconds(2);  // a peer silent for so long is dropped
};

// Thread contract: safe for concurrent use.
//
// One thread with one epoll set serves every connection; it sleeps unless a peer speaks.
// GrantAuthority is called on that thread with no lock held. A connection counts as closed only
// when the peer's end is gone: one that broke the protocol after its hello may still have the
// memory mapped, so it is no longer listened to but stays counted until then. Destruction stops the
// thread and drops the connections without telling the authority: the peers' mappings may outlive
// it.
class Server : public Endpoint {
 public:
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ShmOptions& options,
                                                       ExportedMemory memory,
                                                       GrantAuthority& authority,
                                                       const ServerLimits& limits = {});
  ~Server() override;

  absl::string_view fabric() const override { return "shm"; }
  std::string address() const override { return options_.socket_path; }
  EndpointStats Stats() const override;

 private:
  enum class PeerState : uint8_t { kGreeting, kServed, kIgnored };
  struct Peer {
    UniqueFd socket;
    PeerIdentity identity;
    PeerState state = PeerState::kGreeting;
    Access access = Access::kRead;
    ConnectionId id;
    MonotonicTime hello_deadline;
  };
  using Peers = std::map<uint64_t, Peer>;  // by a key that is never reused, as epoll's user data

  Server(const ShmOptions& options, ExportedMemory memory, GrantAuthority& authority,
         const ServerLimits& limits, ListeningSocket listener, UniqueFd epoll, UniqueFd stop,
         std::vector<UniqueFd> read_only);

  void Run();
  int NextTimeoutMillis() const;
  void DropSilentPeers();
  void Accept();
  void PauseAccepting(int error);
  void HandlePeer(Peers::iterator peer, uint32_t events);
  // False when the peer is gone.
  bool HandleHello(Peers::iterator peer);
  void HandleFences(Peer& peer, uint64_t key);
  void StopListeningTo(Peer& peer, uint64_t key);
  void Remove(Peers::iterator peer);
  absl::Status CheckIdentity(const PeerIdentity& peer) const;
  void Refuse(int socket, const absl::Status& why, const PeerIdentity& peer);
  bool SendWelcome(Peer& peer);

  const ShmOptions options_;
  const ExportedMemory memory_;
  GrantAuthority& authority_;  // outlives this
  const ServerLimits limits_;
  const ListeningSocket listener_;
  const UniqueFd epoll_;
  const UniqueFd stop_;                    // eventfd
  const std::vector<UniqueFd> read_only_;  // of the arenas in order, then of the words

  // Owned by the server thread.
  Peers peers_;
  uint64_t next_key_;
  std::optional<MonotonicTime> accept_again_;  // set while accepting is paused
  LogGate refusals_log_;

  std::atomic<uint64_t> connections_{0};
  std::atomic<uint64_t> connections_total_{0};
  std::atomic<uint64_t> connections_refused_{0};
  std::atomic<uint64_t> requests_{0};
  std::atomic<uint64_t> malformed_{0};

  std::thread thread_;
};

}  // namespace oasiskv::fabric::shm
