#include "common/fabric/ucx/server.h"

#include <netinet/in.h>
#include <ucp/api/ucp.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/address.h"
#include "common/pause_point.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric::ucx {
namespace {

constexpr size_t kMaxPeers = 4096;
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
// How often clients on RDMA lanes are asked whether they are there.
constexpr Duration kPingInterval = std::chrono::seconds(5);

MonotonicTime Now() { return std::chrono::steady_clock::now(); }

// What Authorize promises, checked before anything is copied by it.
absl::Status CheckMatches(const PinnedRanges& pinned, const std::vector<RemoteRange>& ranges) {
  bool same = pinned.memory.size() == ranges.size();
  for (size_t i = 0; same && i < ranges.size(); ++i) {
    same = pinned.memory[i].size() == ranges[i].length;
  }
  if (same) return absl::OkStatus();
  return MakeError(ErrorCode::kInternal, "the daemon resolved a request's ranges to other sizes");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Endpoint>> Server::Start(const UcxEndpointOptions& options,
                                                        ExportedMemory memory,
                                                        GrantAuthority& authority) {
  std::unique_ptr<Server> server(new Server(options, std::move(memory), authority));
  OASISKV_RETURN_IF_ERROR(server->Listen());
  server->thread_ = std::thread([raw = server.get()] { raw->Run(); });
  return server;
}

absl::Status Server::Listen() {
  const Address asked{options_.host, options_.port};
  if (options_.host.empty() || (!asked.IsIpv4() && !asked.IsIpv6())) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrCat("the ucx fabric listens on a numeric address, not on '",
                                  options_.host, "'; correct --ucx_address"));
  }
  OASISKV_ASSIGN_OR_RETURN(const SocketAddress socket_address, UcxAddress(asked));
  // UCX only says "busy" or "device failure": the kernel's own words are better.
  if (absl::Status status = CheckBindable(socket_address.ToAddress()); !status.ok()) {
    return Annotate(status,
                    "the ucx fabric's data port (choose another in --ucx_address, port 0 for any)");
  }
  OASISKV_ASSIGN_OR_RETURN(
      worker_,
      Worker::Create(*this, socket_address.storage.ss_family == AF_INET6 ? Worker::Family::kIpv6
                                                                         : Worker::Family::kIpv4));
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
    return UcxError(absl::StrCat("UCX cannot listen on ", asked.ToString(), " (--ucx_address)"),
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
    out.transports.push_back({transport, static_cast<uint64_t>(count)});
  }
  return out;
}

void Server::Run() {
  MonotonicTime active_at = Now();
  MonotonicTime next_check = active_at;
  while (!stop_.load(std::memory_order_relaxed)) {
    bool active = false;
    for (int i = 0; i < 16 && worker_->Progress(); ++i) active = true;
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
    if (!peer->greeted() || !peer->idle()) return now + kCheckInterval;
    looks = looks || peer->pinged();
  }
  // Over RDMA lanes an event was seen not to wake the thread.
  return looks ? now + kLookInterval : MonotonicTime::max();
}

// Over RDMA lanes a client whose machine is gone is noticed by what is sent to it, and by nothing
// else.
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
    CountTransport(*peer, -1);
  }
  peer->DropJobs();
  closing_.push_back({std::move(node.mapped()), worker_->StartClose(peer->endpoint())});
}

void Server::FinishClosing() {
  for (size_t i = 0; i < closing_.size();) {
    Closing& closing = closing_[i];
    if (!closing.closed) closing.closed = worker_->Closed(closing.request);
    if (!closing.closed || !closing.peer->idle()) {
      ++i;
      continue;
    }
    std::erase(ready_, closing.peer.get());
    if (worker_->transports() != "tcp") lingers_until_ = Now() + kLinger;
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

void Server::CountTransport(const Peer& peer, int64_t by) {
  MutexLock lock(mutex_);
  transports_[peer.lane().transport] += by;
}

// --- what clients ask for: every field is checked, then the daemon's word on the grant ---

void Server::Malformed(const Peer* peer, const Arrival& arrival, absl::string_view why) {
  counters_.malformed.fetch_add(1);
  if (!malformed_gate_.Pass()) return;
  LogWarning("ucx", absl::StrCat("malformed message ", arrival.id, " of ",
                                 peer == nullptr ? "an unknown peer" : peer->address(), ": ", why,
                                 " (", malformed_gate_.suppressed(), " more not logged)"));
}

void Server::OnArrival(const Arrival& arrival) {
  auto it = peers_.find(arrival.from);
  if (arrival.from == nullptr || it == peers_.end()) {
    return Malformed(nullptr, arrival, "it comes without a reply address");
  }
  Peer& peer = *it->second;
  if (peer.broken()) return;
  if (!arrival.whole) return Malformed(&peer, arrival, "it was sent by rendezvous");
  if (arrival.id == static_cast<unsigned>(MessageId::kHello)) return OnHello(peer, arrival);
  if (!peer.greeted()) return Malformed(&peer, arrival, "no hello came first");
  if (arrival.id == static_cast<unsigned>(MessageId::kRead)) return OnRead(peer, arrival);
  if (arrival.id == static_cast<unsigned>(MessageId::kWrite)) return OnWrite(peer, arrival);
  Malformed(&peer, arrival, "no such message goes to a daemon");
}

void Server::OnHello(Peer& peer, const Arrival& arrival) {
  Head head;
  if (arrival.header.size() < sizeof(head) || peer.greeted()) {
    return Malformed(&peer, arrival, "a short or second hello");
  }
  std::memcpy(&head, arrival.header.data(), sizeof(head));
  if (head.magic != kMagic) return Malformed(&peer, arrival, "the hello's magic is wrong");
  Hello hello;
  absl::Status status;
  if (head.version != kVersion) {
    status = MakeError(ErrorCode::kUnsupported,
                       absl::StrCat("the daemon speaks version ", kVersion,
                                    " of the ucx data protocol, the client ", head.version,
                                    "; install the same release on both sides"));
  } else if (!ParseHeader(arrival.header.data(), arrival.header.size(), hello)) {
    return Malformed(&peer, arrival, "the hello is too short");
  } else if (hello.incarnation != 0 && hello.incarnation != incarnation_) {
    status = MakeError(
        ErrorCode::kStale,
        absl::StrCat("the daemon at ", address_, " is incarnation ", incarnation_, ", not ",
                     hello.incarnation, ": it was restarted; describe it and attach again"));
  }
  if (status.ok()) {
    peer.set_greeted(worker_->LaneOf(peer.endpoint()));
    CountTransport(peer, 1);
    LogInfo("ucx", absl::StrCat("connection of ", peer.address(), ": ", peer.lane().ToString()));
    counters_.connections.fetch_add(1);
    counters_.connections_total.fetch_add(1);
  } else {
    counters_.connections_refused.fetch_add(1);
  }
  peer.SendHelloReply(status, incarnation_);
}

void Server::OnRead(Peer& peer, const Arrival& arrival) {
  std::span<const std::byte> header = arrival.header;
  std::span<const std::byte> rest = arrival.payload;
  while (!peer.broken()) {
    ReadRequest request;
    if (!ParseHeader(header.data(), header.size(), request)) {
      return Malformed(&peer, arrival, "a read's header is wrong");
    }
    // A 64-bit number: a count near 2^32 must not wrap into a length that fits.
    const uint64_t range_bytes = uint64_t{request.ranges} * sizeof(RemoteRange);
    if (request.ranges == 0 || request.ranges > kMaxReadRanges || range_bytes > rest.size()) {
      Malformed(&peer, arrival, "a read's count of ranges is wrong");
      return peer.SendTrailer(
          request.request,
          MakeError(ErrorCode::kInvalidArgument,
                    absl::StrCat("a read of ", request.ranges, " ranges came with ", rest.size(),
                                 " bytes of them; at most ", kMaxReadRanges, " are allowed")),
          0);
    }
    ServeRead(peer, request, rest.first(range_bytes));
    rest = rest.subspan(range_bytes);
    if (rest.empty()) return;
    header = rest.first(std::min(rest.size(), sizeof(ReadRequest)));
    rest = rest.subspan(header.size());
  }
}

void Server::ServeRead(Peer& peer, const ReadRequest& request,
                       std::span<const std::byte> range_bytes) {
  counters_.requests.fetch_add(1, std::memory_order_relaxed);
  std::vector<RemoteRange> ranges(request.ranges);
  std::memcpy(ranges.data(), range_bytes.data(), range_bytes.size());
  uint64_t bytes = 0;
  for (const RemoteRange& range : ranges) bytes += range.length;
  if (bytes > kMaxRequestBytes) {
    return peer.SendTrailer(request.request,
                            MakeError(ErrorCode::kInvalidArgument,
                                      absl::StrCat("a request of ", bytes, " bytes; at most ",
                                                   kMaxRequestBytes, " are allowed")),
                            0);
  }
  if (peer.open_requests() >= kMaxOpenRequests) {
    return peer.Break(absl::StrCat("it has more than ", kMaxOpenRequests, " requests open"));
  }
  const GrantId grant(request.grant);
  auto pinned = authority_.Authorize(grant, Epoch(request.epoch), Access::kRead, ranges);
  if (!pinned.ok()) return peer.SendTrailer(request.request, pinned.status(), 0);
  if (absl::Status status = CheckMatches(*pinned, ranges); !status.ok()) {
    return peer.SendTrailer(request.request, status, 0);
  }
  auto job = std::make_unique<ReadJob>();
  job->request = request.request;
  job->grant = grant;
  job->ranges = *std::move(pinned);
  job->bytes = bytes;
  OASISKV_PAUSE_POINT("ucx.server.before_reply");
  peer.Enqueue(std::move(job));
}

void Server::OnWrite(Peer& peer, const Arrival& arrival) {
  WriteRequest request;
  if (!ParseHeader(arrival.header.data(), arrival.header.size(), request)) {
    return Malformed(&peer, arrival, "the write's header is wrong");
  }
  std::vector<RemoteRange> ranges;
  uint64_t bytes = 0;
  if (request.ranges > 0 && request.ranges <= kMaxWriteRanges &&
      arrival.header.size() == sizeof(request) + uint64_t{request.ranges} * sizeof(RemoteRange)) {
    ranges.resize(request.ranges);
    std::memcpy(ranges.data(), arrival.header.data() + sizeof(request),
                ranges.size() * sizeof(RemoteRange));
    for (const RemoteRange& range : ranges) bytes += range.length;
  }
  if (ranges.empty() || bytes != arrival.payload.size()) {
    Malformed(&peer, arrival, "the write's ranges and bytes do not match");
    return peer.SendTrailer(
        request.request,
        MakeError(ErrorCode::kInvalidArgument,
                  absl::StrCat("a write of ", request.ranges, " ranges came with ",
                               arrival.payload.size(), " bytes that do not match them")),
        0);
  }
  counters_.requests.fetch_add(1, std::memory_order_relaxed);
  const GrantId grant(request.grant);
  auto pinned = authority_.Authorize(grant, Epoch(request.epoch), Access::kWrite, ranges);
  if (!pinned.ok()) return peer.SendTrailer(request.request, pinned.status(), 0);
  if (absl::Status status = CheckMatches(*pinned, ranges); !status.ok()) {
    return peer.SendTrailer(request.request, status, 0);
  }
  const std::byte* from = arrival.payload.data();
  for (const std::span<std::byte> into : pinned->memory) {
    std::memcpy(into.data(), from, into.size());
    from += into.size();
  }
  authority_.Written(grant, Epoch(request.epoch), ranges);
  counters_.bytes_written.fetch_add(bytes, std::memory_order_relaxed);
  OASISKV_PAUSE_POINT("ucx.server.before_trailer");
  // Sampled after the copy: a write is good only if the grant was still whole when its last byte
  // had gone in.
  peer.SendTrailer(request.request, absl::OkStatus(), authority_.GrantWord(grant));
}

}  // namespace oasiskv::fabric::ucx

namespace oasiskv::fabric {

absl::StatusOr<std::unique_ptr<Endpoint>> ServeUcx(const UcxEndpointOptions& options,
                                                   ExportedMemory memory,
                                                   GrantAuthority& authority) {
  return ucx::Server::Start(options, std::move(memory), authority);
}

}  // namespace oasiskv::fabric
