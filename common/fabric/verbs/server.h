// The daemon's half of the verbs fabric.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/fabric/verbs/handles.h"
#include "common/fabric/verbs/hello.h"
#include "common/fabric/verbs/port.h"
#include "common/fabric/verbs/verbs.h"
#include "common/log.h"
#include "common/mapped_memory.h"
#include "common/mutex.h"

namespace oasiskv::fabric::verbs {

// Thread contract: safe for concurrent use.
//
// The control plane carries the hellos, so there is nothing to listen on. Of reads and writes the
// daemon sees nothing. Owns the registrations and each client's queue pairs. One thread, asleep nearly always, asks each
// client now and then whether it is there: an RDMA write of no bytes, which the client's device
// acknowledges by itself.
class Server : public Endpoint {
 public:
  static absl::StatusOr<std::unique_ptr<Server>> Start(const VerbsEndpointOptions& options,
                                                       ExportedMemory memory,
                                                       GrantAuthority& authority);
  ~Server() override;

  absl::StatusOr<std::string> Accept(absl::string_view hello) override;
  void Fence(ConnectionId connection, GrantId grant) override;
  bool Close(ConnectionId connection) override;
  absl::string_view fabric() const override { return "verbs"; }
  std::string address() const override;
  EndpointStats Stats() const override;
  std::string Describe() const override { return description_; }

 private:
  struct Peer {
    Access access = Access::kRead;
    std::vector<QueuePair> queue_pairs;
    bool probing = false;
    bool young = true;  // not probed yet
  };
  // Of one arena, in the order of ExportedMemory.
  struct ArenaKeys {
    MemoryRegion reader;
    MemoryRegion writer;
  };

  Server(const VerbsEndpointOptions& options, ExportedMemory memory, GrantAuthority& authority,
         Port port)
      : options_(options),
        memory_(std::move(memory)),
        authority_(authority),
        port_(std::move(port)) {}

  absl::Status Register();
  absl::Status OpenQueues();
  absl::StatusOr<ServerHello> Greet(const ClientHello& hello);
  absl::Status CheckHello(const ClientHello& hello) const;
  absl::StatusOr<ServerHello> Connect(const ClientHello& hello, Peer& peer);

  void Run();
  void Probe();
  void TakeCompletions();

  const VerbsEndpointOptions options_;
  const ExportedMemory memory_;
  GrantAuthority& authority_;
  const Port port_;
  // Destroyed from the last to the first: queue pairs before everything that they use.
  ProtectionDomain domain_;
  Mapping words_mapping_;
  std::vector<ArenaKeys> arenas_;
  MemoryRegion words_;
  CompletionChannel channel_;
  CompletionQueue completions_;
  UniqueFd stop_;
  std::string description_;

  mutable Mutex mutex_;
  absl::flat_hash_map<ConnectionId, Peer> peers_ ABSL_GUARDED_BY(mutex_);
  uint32_t connecting_ ABSL_GUARDED_BY(mutex_) = 0;
  EndpointStats stats_ ABSL_GUARDED_BY(mutex_);

  LogGate log_gate_;
  std::thread thread_;
};

}  // namespace oasiskv::fabric::verbs
