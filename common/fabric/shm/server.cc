#include "common/fabric/shm/server.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/fabric/shm/protocol.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric::shm {
namespace {

constexpr uint64_t kListenerKey = 0;
constexpr uint64_t kStopKey = 1;
constexpr uint64_t kFirstPeerKey = 2;
constexpr auto kAcceptPause = std::chrono::milliseconds(100);
constexpr int kMessagesPerTurn = 64;  // a talkative peer must not starve the others

absl::Status ErrnoError(absl::string_view what) {
  return MakeError(ErrorCode::kInternal, absl::StrFormat("%s: %s", what, std::strerror(errno)));
}

bool Watch(int epoll, int op, int fd, uint32_t events, uint64_t key) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = key;
  return ::epoll_ctl(epoll, op, fd, &event) == 0;
}

absl::Status CheckMemory(const ExportedMemory& memory) {
  if (memory.arenas.size() > kMaxArenas) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        absl::StrFormat(
            "the pool has %d arenas and the shm fabric can pass %d; make them fewer with a larger "
            "--arena_bytes",
            memory.arenas.size(), kMaxArenas));
  }
  for (size_t i = 0; i < memory.arenas.size(); ++i) {
    if (memory.arenas[i].id.value() != i) {
      return MakeError(ErrorCode::kInvalidArgument,
                       absl::StrFormat("arena %d stands at place %d; arenas come by id, from 0",
                                       memory.arenas[i].id.value(), i));
    }
  }
  return absl::OkStatus();
}

// The check of credentials is what keeps others out; the file's mode only must not be in the way of
// those it lets in.
mode_t SocketMode(const ShmOptions& options) {
  if (!options.allowed_uids.empty()) return 0666;
  return options.allowed_gid >= 0 ? 0660 : 0600;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ShmOptions& options,
                                                      ExportedMemory memory,
                                                      GrantAuthority& authority,
                                                      const ServerLimits& limits) {
  OASISKV_RETURN_IF_ERROR(CheckMemory(memory));
  std::vector<UniqueFd> read_only;
  for (const ExportedMemory::Arena& arena : memory.arenas) {
    OASISKV_ASSIGN_OR_RETURN(UniqueFd fd, ReopenReadOnly(arena.fd));
    read_only.push_back(std::move(fd));
  }
  OASISKV_ASSIGN_OR_RETURN(UniqueFd words, ReopenReadOnly(memory.words_fd));
  read_only.push_back(std::move(words));

  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return ErrnoError("epoll_create1");
  UniqueFd stop(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop) return ErrnoError("eventfd");
  OASISKV_ASSIGN_OR_RETURN(
      ListeningSocket listener,
      ListeningSocket::Bind(options.socket_path, SocketMode(options), options.allowed_gid));
  if (!Watch(epoll.get(), EPOLL_CTL_ADD, listener.fd(), EPOLLIN, kListenerKey) ||
      !Watch(epoll.get(), EPOLL_CTL_ADD, stop.get(), EPOLLIN, kStopKey)) {
    return ErrnoError("epoll_ctl");
  }
  std::unique_ptr<Server> server(new Server(options, std::move(memory), authority, limits,
                                            std::move(listener), std::move(epoll), std::move(stop),
                                            std::move(read_only)));
  server->thread_ = std::thread([raw = server.get()] { raw->Run(); });
  return server;
}

Server::Server(const ShmOptions& options, ExportedMemory memory, GrantAuthority& authority,
               const ServerLimits& limits, ListeningSocket listener, UniqueFd epoll, UniqueFd stop,
               std::vector<UniqueFd> read_only)
    : options_(options),
      memory_(std::move(memory)),
      authority_(authority),
      limits_(limits),
      listener_(std::move(listener)),
      epoll_(std::move(epoll)),
      stop_(std::move(stop)),
      read_only_(std::move(read_only)),
      next_key_(kFirstPeerKey) {}

Server::~Server() {
  ::eventfd_write(stop_.get(), 1);
  if (thread_.joinable()) thread_.join();
}

EndpointStats Server::Stats() const {
  EndpointStats stats;
  stats.connections = connections_.load();
  stats.connections_total = connections_total_.load();
  stats.connections_refused = connections_refused_.load();
  stats.requests = requests_.load();
  stats.malformed = malformed_.load();
  return stats;
}

void Server::Run() {
  std::array<epoll_event, 64> events;
  while (true) {
    const int count = ::epoll_wait(epoll_.get(), events.data(), events.size(), NextTimeoutMillis());
    for (int i = 0; i < count; ++i) {
      const uint64_t key = events[i].data.u64;
      if (key == kStopKey) return;
      if (key == kListenerKey) {
        Accept();
      } else if (auto peer = peers_.find(key); peer != peers_.end()) {
        HandlePeer(peer, events[i].events);
      }
    }
    DropSilentPeers();
    if (accept_again_ && Clock::Real().Now() >= *accept_again_) {
      accept_again_.reset();
      Watch(epoll_.get(), EPOLL_CTL_MOD, listener_.fd(), EPOLLIN, kListenerKey);
    }
  }
}

int Server::NextTimeoutMillis() const {
  std::optional<MonotonicTime> next = accept_again_;
  for (const auto& [key, peer] : peers_) {
    if (peer.state != PeerState::kGreeting) continue;
    if (!next || peer.hello_deadline < *next) next = peer.hello_deadline;
  }
  if (!next) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*next - Clock::Real().Now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 60'000));
}

void Server::DropSilentPeers() {
  const MonotonicTime now = Clock::Real().Now();
  for (auto peer = peers_.begin(); peer != peers_.end();) {
    auto next = std::next(peer);
    if (peer->second.state == PeerState::kGreeting && peer->second.hello_deadline <= now) {
      ++connections_refused_;
      Remove(peer);
    }
    peer = next;
  }
}

void Server::Accept() {
  UniqueFd socket(::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) {
    // Out of descriptors or memory: the connection stays in the queue, and asking again at once
    // would only burn CPU.
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      PauseAccepting(errno);
    }
    return;
  }
  auto identity = IdentityOf(socket.get());
  if (!identity.ok()) {
    Refuse(socket.get(), identity.status(), {});
    return;
  }
  absl::Status allowed = CheckIdentity(*identity);
  if (allowed.ok() && peers_.size() >= limits_.max_connections) {
    allowed = MakeError(ErrorCode::kCapacity,
                        absl::StrFormat("the daemon has its %d connections over shm already; close "
                                        "some, or share one between threads",
                                        limits_.max_connections));
  }
  if (!allowed.ok()) {
    Refuse(socket.get(), allowed, *identity);
    return;
  }
  const uint64_t key = next_key_++;
  if (!Watch(epoll_.get(), EPOLL_CTL_ADD, socket.get(), EPOLLIN, key)) {
    Refuse(socket.get(), ErrnoError("epoll_ctl"), *identity);
    return;
  }
  Peer peer;
  peer.socket = std::move(socket);
  peer.identity = *std::move(identity);
  peer.hello_deadline = Clock::Real().Now() + limits_.hello_timeout;
  peers_.emplace(key, std::move(peer));
}

void Server::PauseAccepting(int error) {
  Watch(epoll_.get(), EPOLL_CTL_MOD, listener_.fd(), 0, kListenerKey);
  accept_again_ = Clock::Real().Now() + kAcceptPause;
  if (refusals_log_.Pass()) {
    LogWarning("shm", absl::StrFormat("cannot accept a connection: %s; raise 'ulimit -n'",
                                      std::strerror(error)));
  }
}

void Server::HandlePeer(Peers::iterator peer, uint32_t events) {
  const uint64_t key = peer->first;
  if (peer->second.state == PeerState::kGreeting && !HandleHello(peer)) return;
  if (peer->second.state == PeerState::kServed) HandleFences(peer->second, key);
  if ((events & (EPOLLHUP | EPOLLERR)) != 0) Remove(peer);
}

bool Server::HandleHello(Peers::iterator peer) {
  Hello hello;
  const int socket = peer->second.socket.get();
  // Descriptors that a peer sends are dropped by the kernel: there is no room for them here.
  const ssize_t received = ::recv(socket, &hello, sizeof(hello), MSG_DONTWAIT | MSG_TRUNC);
  if (received < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (received ==
      0) {  // went away without a word, as a starting daemon does that looks for a live one
    ++connections_refused_;
    Remove(peer);
    return false;
  }
  absl::Status bad;
  if (received != sizeof(hello) || hello.magic != kMagic) {
    if (received > 0) ++malformed_;
    bad = MakeError(ErrorCode::kInvalidArgument, "this is no oasiskv shm client");
  } else if (hello.version != kVersion) {
    bad = MakeError(ErrorCode::kUnsupported,
                    absl::StrFormat("the client speaks version %d of the shm protocol, the daemon "
                                    "version %d; install equal versions",
                                    hello.version, kVersion));
  } else if (hello.access > static_cast<uint32_t>(Access::kWrite)) {
    ++malformed_;
    bad = MakeError(ErrorCode::kInvalidArgument, absl::StrFormat("access %d", hello.access));
  }
  if (bad.ok()) {
    peer->second.access = static_cast<Access>(hello.access);
    if (SendWelcome(peer->second)) return true;
    bad = ErrnoError("sending the descriptors");
  }
  Refuse(socket, bad, peer->second.identity);
  Remove(peer);
  return false;
}

bool Server::SendWelcome(Peer& peer) {
  auto token = RandomToken();
  if (!token.ok()) return false;
  Welcome welcome;
  welcome.incarnation = memory_.incarnation;
  welcome.connection = *token;
  welcome.words_bytes = memory_.words_bytes;
  welcome.arenas = static_cast<uint32_t>(memory_.arenas.size());
  std::vector<std::byte> message(sizeof(welcome) + memory_.arenas.size() * sizeof(uint64_t));
  std::memcpy(message.data(), &welcome, sizeof(welcome));
  std::vector<int> descriptors;
  for (size_t i = 0; i < memory_.arenas.size(); ++i) {
    std::memcpy(message.data() + sizeof(welcome) + i * sizeof(uint64_t), &memory_.arenas[i].bytes,
                sizeof(uint64_t));
    descriptors.push_back(peer.access == Access::kWrite ? memory_.arenas[i].fd
                                                        : read_only_[i].get());
  }
  descriptors.push_back(read_only_.back().get());
  // Counted before the client can know that it is connected.
  peer.id = ConnectionId(*token);
  peer.state = PeerState::kServed;
  ++connections_;
  ++connections_total_;
  if (peer.access == Access::kWrite) authority_.ConnectionOpened(peer.id);
  if (SendMessage(peer.socket.get(), message, descriptors)) return true;
  if (peer.access == Access::kWrite) authority_.ConnectionClosed(peer.id);
  peer.state = PeerState::kGreeting;
  --connections_;
  --connections_total_;
  return false;
}

void Server::HandleFences(Peer& peer, uint64_t key) {
  for (int i = 0; i < kMessagesPerTurn; ++i) {
    shm::Fence fence;
    const ssize_t received =
        ::recv(peer.socket.get(), &fence, sizeof(fence), MSG_DONTWAIT | MSG_TRUNC);
    if (received < 0) return;
    if (received == 0) {
      // The end of the stream (the hang-up says so too), or an empty message, or a peer that closed
      // only one direction.
      StopListeningTo(peer, key);
      return;
    }
    if (received != sizeof(fence) || fence.magic != kMagic || peer.access != Access::kWrite) {
      ++malformed_;
      if (refusals_log_.Pass()) {
        LogWarning("shm",
                   absl::StrFormat("pid %d (uid %d) broke the protocol: %d bytes that are no "
                                   "writer's fence; it is not listened to any more",
                                   peer.identity.pid, peer.identity.uid, received));
      }
      StopListeningTo(peer, key);
      return;
    }
    ++requests_;
    authority_.WriterFenced(peer.id, GrantId(fence.grant));
  }
}

void Server::StopListeningTo(Peer& peer, uint64_t key) {
  peer.state = PeerState::kIgnored;
  // A hang-up is reported all the same. We must not shut down our direction: together with the
  // peer's own half-close the kernel would report a hang-up while the peer lives and has the memory
  // mapped.
  Watch(epoll_.get(), EPOLL_CTL_MOD, peer.socket.get(), 0, key);
}

void Server::Remove(Peers::iterator peer) {
  const bool served = peer->second.state != PeerState::kGreeting;
  const ConnectionId id = peer->second.id;
  peers_.erase(peer);
  if (!served) return;
  --connections_;
  authority_.ConnectionClosed(id);
}

absl::Status Server::CheckIdentity(const PeerIdentity& peer) const {
  if (peer.uid == 0 || peer.uid == ::geteuid()) return absl::OkStatus();
  const auto& uids = options_.allowed_uids;
  if (std::find(uids.begin(), uids.end(), peer.uid) != uids.end()) return absl::OkStatus();
  if (options_.allowed_gid >= 0) {
    const auto gid = static_cast<gid_t>(options_.allowed_gid);
    if (peer.gid == gid ||
        std::find(peer.groups.begin(), peer.groups.end(), gid) != peer.groups.end()) {
      return absl::OkStatus();
    }
  }
  return MakeError(ErrorCode::kPermissionDenied,
                   absl::StrFormat("the daemon serves shm to uid %d and root; uid %d is neither, "
                                   "nor named by --shm_allowed_uids or --shm_allowed_gid",
                                   ::geteuid(), peer.uid));
}

void Server::Refuse(int socket, const absl::Status& why, const PeerIdentity& peer) {
  ++connections_refused_;
  const ErrorCode code = ErrorCodeOf(why);
  absl::string_view text = why.message();  // the client's own MakeError puts the code's name back
  absl::ConsumePrefix(&text, absl::StrCat(ErrorCodeName(code), ": "));
  text = text.substr(0, kMaxMessageText);
  Welcome welcome;
  welcome.error = static_cast<uint32_t>(code);
  welcome.message_bytes = static_cast<uint32_t>(text.size());
  std::vector<std::byte> message(sizeof(welcome) + text.size());
  std::memcpy(message.data(), &welcome, sizeof(welcome));
  std::memcpy(message.data() + sizeof(welcome), text.data(), text.size());
  SendMessage(socket, message, {});  // a peer that is gone already has no need of it
  if (refusals_log_.Pass()) {
    LogWarning("shm", absl::StrFormat("refused pid %d (uid %d): %s", peer.pid, peer.uid,
                                      std::string(why.message())));
  }
}

}  // namespace oasiskv::fabric::shm

namespace oasiskv::fabric {

absl::StatusOr<std::unique_ptr<Endpoint>> ServeShm(const ShmOptions& options, ExportedMemory memory,
                                                   GrantAuthority& authority) {
  OASISKV_ASSIGN_OR_RETURN(std::unique_ptr<Endpoint> server,
                           shm::Server::Start(options, std::move(memory), authority));
  return server;
}

}  // namespace oasiskv::fabric
