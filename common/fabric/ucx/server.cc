// The server's life: listening, its thread's loop, clients that come and go.
#include "common/fabric/ucx/server.h"

#include <netinet/in.h>
#include <ucp/api/ucp.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/address.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric::ucx {
namespace {

constexpr size_t kMaxPeers = 4096;
// For its hello, and for its answer to the offer of keys.
constexpr Duration kHelloTimeout = std::chrono::seconds(10);
constexpr Duration kStopTimeout = std::chrono::seconds(2);
// How long the thread looks for work before it sleeps: about what going to sleep and being woken
// costs.
constexpr Duration kSpin = std::chrono::microseconds(30);
constexpr int kMaxRounds = 64;
// How often waiting peers are looked at, and closing ones.
constexpr Duration kCheckInterval = std::chrono::milliseconds(100);
constexpr Duration kCloseInterval = std::chrono::milliseconds(10);
// How often the thread looks around by itself when there are peers on RDMA lanes, or were so long
// ago: devices tell another thread of UCX that a queue pair is empty, and the worker destroys it
// when it is progressed next.
constexpr Duration kLookInterval = std::chrono::milliseconds(200);
constexpr Duration kLinger = std::chrono::seconds(30);
// How often clients that do without the daemon are asked whether they are there.
constexpr Duration kPingInterval = std::chrono::seconds(5);

MonotonicTime Now() { return std::chrono::steady_clock::now(); }

}  // namespace

absl::StatusOr<std::unique_ptr<UcxEndpoint>> Server::Start(const UcxEndpointOptions& options,
                                                           ExportedMemory memory,
                                                           GrantAuthority& authority) {
  std::unique_ptr<Server> server(new Server(options, std::move(memory), authority));
  OASISKV_RETURN_IF_ERROR(server->Listen());
  if (absl::Status status = server->RegisterMemory(); !status.ok()) {
    server->keys_.clear();
    LogWarning("ucx", absl::StrCat("no keys are given, all clients go by messages: ",
                                   std::string(status.message())));
  }
  server->thread_ = std::thread([raw = server.get()] { raw->Run(); });
  return server;
}

absl::Status Server::Listen() {
  const Address asked{options_.host, options_.port};
  if (options_.host.empty() || (!asked.IsIpv4() && !asked.IsIpv6())) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrCat("the ucx fabric listens on a numeric address, not on '",
                                  options_.host, "'; mend --ucx_host"));
  }
  OASISKV_ASSIGN_OR_RETURN(const SocketAddress socket_address, UcxAddress(asked));
  // UCX only says "busy" or "device failure": the kernel's own words are better.
  if (absl::Status status = CheckBindable(socket_address.ToAddress()); !status.ok()) {
    return Annotate(status,
                    "the ucx fabric's data port (choose another with --ucx_port, or 0 for any)");
  }
  OASISKV_ASSIGN_OR_RETURN(
      worker_, Worker::Create(*this,
                              socket_address.storage.ss_family == AF_INET6 ? Worker::Family::kIpv6
                                                                           : Worker::Family::kIpv4,
                              options_.one_sided ? Worker::RemoteMemory::kIfDevices
                                                 : Worker::RemoteMemory::kNo));
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr.addr = socket_address.get();
  params.sockaddr.addrlen = socket_address.length;
  params.conn_handler.cb = [](ucp_conn_request_h request, void* arg) {
    static_cast<Server*>(arg)->Accept(request);
  };
  params.conn_handler.arg = this;
  ucs_status_t status = ucp_listener_create(worker_->get(), &params, &listener_);
  if (status != UCS_OK) {
    return UcxError(
        absl::StrCat("UCX cannot listen on ", asked.ToString(), " (--ucx_host, --ucx_port)"),
        status);
  }
  ucp_listener_attr_t attr{};
  attr.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  status = ucp_listener_query(listener_, &attr);
  if (status != UCS_OK) return UcxError("UCX does not tell the port it listens on", status);
  SocketAddress bound;
  bound.storage = attr.sockaddr;
  bound.length = attr.sockaddr.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  address_ = Address{options_.host, bound.ToAddress().port}.ToString();
  return absl::OkStatus();
}

Server::~Server() {
  stop_.store(true);
  if (thread_.joinable()) {
    worker_->Wake();
    thread_.join();
  } else if (listener_ != nullptr) {
    ucp_listener_destroy(listener_);
  }
  // Whatever UCX still holds it gives back here, while the peers are there to be told.
  worker_.reset();
  for (const Closing& closing : closing_) {
    if (closing.peer->connection().value() != 0) {
      authority_.ConnectionClosed(closing.peer->connection());
    }
  }
}

EndpointStats Server::Stats() const {
  EndpointStats out;
  out.connections = counters_.connections.load();
  out.connections_total = counters_.connections_total.load();
  out.connections_refused = counters_.connections_refused.load();
  out.requests = counters_.requests.load();
  out.requests_refused = counters_.requests_refused.load();
  out.malformed = counters_.malformed.load();
  out.bytes_read = counters_.bytes_read.load();
  out.bytes_written = counters_.bytes_written.load();
  MutexLock lock(mutex_);
  for (const auto& [transport, count] : transports_) {
    out.transports.push_back({transport.first, transport.second, static_cast<uint64_t>(count)});
  }
  return out;
}

void Server::Run() {
  MonotonicTime active_at = Now();
  MonotonicTime next_check = active_at;
  while (!stop_.load(std::memory_order_relaxed)) {
    bool active = false;
    for (int i = 0; i < 16 && worker_->Progress(); ++i) active = true;
    BreakUnfenced();
    if (!ready_.empty()) {
      ServeReady();
      active = true;
    }
    FinishClosing();
    const MonotonicTime now = Now();
    if (now >= next_check) {
      CheckTimeouts(now);
      PingPeers(now);
      next_check = now + kCheckInterval;
    }
    if (active) {
      active_at = now;
    } else if (now - active_at > kSpin) {
      worker_->Sleep(SleepUntil(now));
    }
  }
  ucp_listener_destroy(listener_);
  const MonotonicTime end = Now() + kStopTimeout;
  while (!peers_.empty()) StartClosing(peers_.begin()->second.get());
  while (!closing_.empty() && Now() < end) {
    worker_->Progress();
    FinishClosing();
  }
  if (!closing_.empty()) {
    LogWarning("ucx", absl::StrCat(closing_.size(), " connections did not close in time"));
  }
}

MonotonicTime Server::SleepUntil(MonotonicTime now) const {
  if (!closing_.empty()) return now + kCloseInterval;
  bool looks = now < lingers_until_;
  for (const auto& [endpoint, peer] : peers_) {
    if (!peer->greeted() || peer->offered() || !peer->idle()) return now + kCheckInterval;
    looks = looks || peer->pinged();
  }
  // Over RDMA lanes an event was seen not to wake the thread.
  return looks ? now + kLookInterval : MonotonicTime::max();
}

// Over RDMA lanes a client whose machine is gone is noticed by what is sent to it, and by nothing
// else: its device answers for a process that is stopped, and the daemon may see nothing of what it
// reads.
void Server::PingPeers(MonotonicTime now) {
  if (now < next_ping_) return;
  next_ping_ = now + kPingInterval;
  for (const auto& [endpoint, peer] : peers_) {
    if (peer->pinged() && !peer->broken()) peer->SendPing();
  }
}

void Server::CheckTimeouts(MonotonicTime now) {
  for (const auto& [endpoint, peer] : peers_) {
    if (!peer->greeted() && now - peer->connected_at() > kHelloTimeout) {
      peer->Break("it sent no hello");
    } else if (peer->offered() && now - peer->connected_at() > 2 * kHelloTimeout) {
      peer->Break("it does not say whether it takes keys");
    } else if (peer->StuckSince(now - options_.reply_timeout)) {
      peer->Break("it takes no data");
    }
  }
}

void Server::ServeReady() {
  // One message a peer and round, so that a large reply does not hold up the others; so many
  // rounds, so that replies do not hold up what comes in.
  bool more = true;
  for (int round = 0; more && round < kMaxRounds; ++round) {
    more = false;
    for (size_t i = 0; i < ready_.size(); ++i) more |= ready_[i]->Pump();
  }
  const std::vector<Peer*> served = std::exchange(ready_, {});
  for (Peer* peer : served) {
    peer->TakenFromReady();
    auto it = peers_.find(peer->endpoint());
    // A closing peer's endpoint may already be a newer peer's.
    const bool open = it != peers_.end() && it->second.get() == peer;
    if (peer->broken()) {
      if (open) StartClosing(peer);
    } else if (more) {
      peer->MarkReady();
    }
  }
}

void Server::StartClosing(Peer* peer) {
  auto node = peers_.extract(peer->endpoint());
  if (!peer->broken()) peer->Break("the daemon stops");
  LogInfo("ucx", absl::StrCat("connection of ", peer->address(), " closed: ", peer->broken_why()));
  if (peer->greeted()) {
    counters_.connections.fetch_sub(1);
    if (!peer->offered()) CountTransport(*peer, -1);
  }
  peer->DropJobs();
  closing_.push_back({std::move(node.mapped()), worker_->StartClose(peer->endpoint())});
}

void Server::FinishClosing() {
  for (size_t i = 0; i < closing_.size();) {
    Closing& closing = closing_[i];
    if (!closing.closed) closing.closed = worker_->Closed(closing.request);
    const ConnectionId connection = closing.peer->connection();
    if (closing.closed && connection.value() != 0 && !closing.discarding) {
      closing.request = worker_->StartDiscard();
      closing.discarding = true;
      closing.closed = false;
      closing.closed = worker_->Closed(closing.request);
    }
    if (!closing.closed || !closing.peer->idle()) {
      ++i;
      continue;
    }
    if (connection.value() != 0) {
      {
        MutexLock lock(mutex_);
        connections_.erase(connection);
      }
      authority_.ConnectionClosed(connection);
    }
    std::erase(ready_, closing.peer.get());
    if (worker_->remote_memory()) lingers_until_ = Now() + kLinger;
    closing_.erase(closing_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

void Server::Accept(ucp_conn_request_h request) {
  std::string from = "an unknown address";
  ucp_conn_request_attr_t attr{};
  attr.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR;
  if (ucp_conn_request_query(request, &attr) == UCS_OK) {
    SocketAddress client;
    client.storage = attr.client_address;
    client.length =
        attr.client_address.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    from = client.ToAddress().ToString();
  }
  const bool unusable = IsUnusableIpv6(reinterpret_cast<const sockaddr*>(&attr.client_address));
  if (unusable || stop_.load() || peers_.size() + closing_.size() >= kMaxPeers) {
    counters_.connections_refused.fetch_add(1);
    LogWarning("ucx", absl::StrCat("connection of ", from, " refused: ",
                                   unusable ? "UCX has no data address for it"
                                            : "too many connections, or stopping"));
    ucp_listener_reject(listener_, request);
    return;
  }
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST | UCP_EP_PARAM_FIELD_ERR_HANDLER |
                      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
  params.conn_request = request;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = [](void* arg, ucp_ep_h endpoint, ucs_status_t why) {
    static_cast<Server*>(arg)->OnEndpointError(endpoint, ucs_status_string(why));
  };
  params.err_handler.arg = this;
  ucp_ep_h endpoint = nullptr;
  const ucs_status_t status = ucp_ep_create(worker_->get(), &params, &endpoint);
  if (status != UCS_OK) {
    counters_.connections_refused.fetch_add(1);
    LogWarning("ucx", absl::StrCat("connection of ", from, ": ", ucs_status_string(status)));
    return;
  }
  peers_.emplace(endpoint, std::make_unique<Peer>(*worker_, authority_, counters_, ready_, endpoint,
                                                  std::move(from), Now()));
}

void Server::OnEndpointError(ucp_ep_h endpoint, absl::string_view why) {
  auto it = peers_.find(endpoint);
  if (it != peers_.end()) it->second->Break(absl::StrCat("its client is gone (", why, ")"));
}

}  // namespace oasiskv::fabric::ucx

namespace oasiskv::fabric {

absl::StatusOr<std::unique_ptr<UcxEndpoint>> ServeUcx(const UcxEndpointOptions& options,
                                                      ExportedMemory memory,
                                                      GrantAuthority& authority) {
  return ucx::Server::Start(options, std::move(memory), authority);
}

}  // namespace oasiskv::fabric
