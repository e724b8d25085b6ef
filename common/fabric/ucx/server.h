// The serving half: one thread owns the worker, the listener and all peers.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "common/fabric/ucx/peer.h"
#include "common/fabric/ucx/ucx.h"
#include "common/fabric/ucx/worker.h"
#include "common/log.h"
#include "common/mutex.h"

struct ucp_listener;
struct ucp_conn_request;

namespace oasiskv::fabric::ucx {

// Thread contract: as Endpoint; all private state but the counters belongs to the server's thread.
class Server final : public Endpoint, private ArrivalHandler {
 public:
  static absl::StatusOr<std::unique_ptr<Endpoint>> Start(const UcxEndpointOptions& options,
                                                         ExportedMemory memory,
                                                         GrantAuthority& authority);
  ~Server() override;

  absl::string_view fabric() const override { return "ucx"; }
  std::string address() const override { return address_; }
  EndpointStats Stats() const override;

 private:
  struct Closing {
    std::unique_ptr<Peer> peer;
    void* request = nullptr;
    bool closed = false;
  };

  Server(const UcxEndpointOptions& options, ExportedMemory memory, GrantAuthority& authority)
      : options_(options),
        memory_(std::move(memory)),
        incarnation_(memory_.incarnation),
        authority_(authority) {}

  absl::Status Listen();
  void Run();
  void OnArrival(const Arrival& arrival) override;
  void OnHello(Peer& peer, const Arrival& arrival);
  void OnRead(Peer& peer, const Arrival& arrival);
  void ServeRead(Peer& peer, const ReadRequest& request, std::span<const std::byte> range_bytes);
  void OnWrite(Peer& peer, const Arrival& arrival);
  void CountTransport(const Peer& peer, int64_t by);
  void Malformed(const Peer* peer, const Arrival& arrival, absl::string_view why);
  void Accept(ucp_conn_request* request);
  void ServeReady();
  void StartClosing(Peer* peer);
  void FinishClosing();
  void CheckTimeouts(MonotonicTime now);
  void PingPeers(MonotonicTime now);
  MonotonicTime SleepUntil(MonotonicTime now) const;

  void OnEndpointError(ucp_ep* endpoint, absl::string_view why);

  const UcxEndpointOptions options_;
  const ExportedMemory memory_;
  const uint64_t incarnation_;
  GrantAuthority& authority_;
  std::string address_;
  ServerCounters counters_;
  LogGate malformed_gate_;

  mutable Mutex mutex_;
  std::map<std::string, int64_t> transports_ ABSL_GUARDED_BY(mutex_);

  std::unique_ptr<Worker> worker_;
  ucp_listener* listener_ = nullptr;
  std::unordered_map<ucp_ep*, std::unique_ptr<Peer>> peers_;
  std::vector<Peer*> ready_;
  std::vector<Closing> closing_;
  MonotonicTime next_ping_;
  MonotonicTime lingers_until_;  // looks around until then, though it has nothing to do

  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace oasiskv::fabric::ucx
