// A UCX context and worker, how its thread sleeps, and how messages are sent on it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/address.h"
#include "common/clock.h"
#include "common/fabric/ucx/wire.h"
#include "common/mapped_memory.h"

// UCX's own types, named here so that its headers stay in the .cc files.
struct ucp_context;
struct ucp_worker;
struct ucp_ep;

namespace oasiskv::fabric::ucx {

// Thread contract: used by the thread that owns the worker.
//
// One outgoing message. UCX reads header and payload until OnSent, which comes exactly once,
// possibly before Worker::Send returns; then the message is deleted.
class Message {
 public:
  Message(MessageId id, const void* header, size_t header_bytes)
      : id(id),
        header(static_cast<const std::byte*>(header),
               static_cast<const std::byte*>(header) + header_bytes) {}
  virtual ~Message() = default;
  virtual void OnSent(bool ok) {}

  const MessageId id;
  std::vector<std::byte> header;
  // The payload: the pieces in `gather` one after another, which stay the sender's, or else
  // `owned`.
  std::vector<std::span<const std::byte>> gather;
  std::vector<std::byte> owned;
};

// A message as it arrived; it lasts as long as the call that hands it over.
struct Arrival {
  ucp_ep* from = nullptr;  // null when the sender did not say where to reply
  unsigned id = 0;
  std::span<const std::byte> header;
  std::span<const std::byte> payload;
  bool whole = true;  // false for a rendezvous, whose payload is not here: this protocol has none
};

class ArrivalHandler {
 public:
  virtual ~ArrivalHandler() = default;
  virtual void OnArrival(const Arrival& arrival) = 0;
};

// The lane that UCX chose for an endpoint's messages, for people and metrics.
struct Lane {
  std::string transport = "unknown";  // "tcp", "rc_verbs"
  std::string device;                 // "eth0", "mlx5_0:1"

  std::string ToString() const;  // "rc_verbs/mlx5_0:1"
};

// Reads the text of ucp_ep_print_info. Never fails: what it does not understand is "unknown".
Lane ParseLane(absl::string_view text);

// Thread contract: everything but Wake belongs to one thread at a time; Wake is safe for concurrent
// use.
class Worker {
 public:
  // Arrivals of every message id below kMessageIds go to `handler`, which must outlive the worker.
  // Errors: INTERNAL with UCX's words and the transports asked for.
  enum class Family : uint8_t { kIpv4, kIpv6 };
  // `family` is that of the address listened on or connected to: UCX carries the data over
  // connections of its own between addresses of the interfaces, which must be of the same family.
  static absl::StatusOr<std::unique_ptr<Worker>> Create(ArrivalHandler& handler, Family family);
  ~Worker();

  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  ucp_worker* get() const { return worker_; }
  // The transports UCX may choose from: what UCX_TLS says, else "tcp", or "rc,tcp" where the
  // machine has an RDMA device.
  const std::string& transports() const { return transports_; }
  // What UCX chose for a connected endpoint.
  Lane LaneOf(ucp_ep* endpoint) const;

  // True when something happened.
  bool Progress();
  // Asks for a reply address to be sent along when `with_reply`: a server knows a client by it.
  enum class Reply : uint8_t { kNo, kYes };
  void Send(ucp_ep* endpoint, std::unique_ptr<Message> message, Reply reply);
  // Sleeps until UCX has something to do, Wake is called, or `until` comes.
  void Sleep(MonotonicTime until);
  void Wake();
  // Gives an endpoint up at once, what it has in flight ending as failed. A request to pass to
  // Closed, or null when all is done already.
  void* StartClose(ucp_ep* endpoint);
  // True, freeing it, when the request has ended.
  bool Closed(void* request);

 private:
  struct Slot;  // what UCX calls back with: the handler and the message's id

  Worker() = default;

  ucp_context* context_ = nullptr;
  ucp_worker* worker_ = nullptr;
  std::vector<Slot> slots_;
  int event_fd_ = -1;  // UCX's; goes with the worker
  UniqueFd wake_fd_;
  std::string transports_;
  // Set before sleeping and before waking, each looking at the other's flag afterwards: no wake-up
  // is lost, and none costs a system call while the thread is awake.
  std::atomic<bool> sleeping_{false};
  std::atomic<bool> woken_{false};
};

// UCX's TCP transport makes data connections of its own, between addresses of the network
// interfaces, of which it takes one each and passes over IPv6 addresses of loopback and of one link
// only. Worse, an IPv6 peer on an interface for which it took an IPv4 address makes it write beyond
// a buffer (1.13.1).
//
// True for an address that is therefore to be kept from UCX: loopback, link-local and IPv4 in IPv6
// clothes.
bool IsUnusableIpv6(const sockaddr* address);
// The address to give to UCX for `address`: [::1] stands for 127.0.0.1, on both sides alike, others
// for themselves. Errors: INVALID_ARGUMENT for a link-local address.
absl::StatusOr<SocketAddress> UcxAddress(const Address& address);

// "INTERNAL: what: UCX's words"
absl::Status UcxError(absl::string_view what, int ucs_status);

}  // namespace oasiskv::fabric::ucx
