#include "common/fabric/verbs/server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/fabric/verbs/memory.h"
#include "common/fabric/verbs/queue_pair.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric::verbs {
namespace {

// The daemon sends nothing but probes, one at a time.
constexpr uint32_t kDepth = 4;

// Of reads that this device can answer for, and have in flight, per queue pair.
uint32_t ServedReads(const Port& port) {
  return static_cast<uint32_t>(std::clamp(port.limits.max_qp_rd_atom, 1, 255));
}

absl::Status ErrnoError(absl::string_view what) {
  return MakeError(ErrorCode::kInternal, absl::StrCat(what, ": ", std::strerror(errno)));
}

// Of the file's own pages: huge ones for a file made of them.
uint64_t PageBytes(int fd) {
  struct stat info;
  return ::fstat(fd, &info) == 0 && info.st_blksize > 0 ? static_cast<uint64_t>(info.st_blksize)
                                                        : 4096;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const VerbsEndpointOptions& options,
                                                      ExportedMemory memory,
                                                      GrantAuthority& authority) {
  if (memory.arenas.size() > kMaxHelloArenas) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrCat(memory.arenas.size(), " arenas; the verbs fabric serves at most ",
                                  kMaxHelloArenas));
  }
  OASISKV_ASSIGN_OR_RETURN(Port port, OpenPort(options.port));
  OASISKV_ASSIGN_OR_RETURN(const GidChoice gid, port.Choose(nullptr));
  std::unique_ptr<Server> server(
      new Server(options, std::move(memory), authority, std::move(port)));
  OASISKV_RETURN_IF_ERROR(server->OpenQueues());
  const MonotonicTime start = Clock::Real().Now();
  OASISKV_RETURN_IF_ERROR(server->Register());
  uint64_t bytes = 0, pages = 0;
  for (const ExportedMemory::Arena& arena : server->memory_.arenas) {
    bytes += arena.bytes;
    pages += arena.bytes / PageBytes(arena.fd);
  }
  server->description_ = absl::StrFormat(
      "verbs on %s port %d, GID %s; registered %d arenas, %.2f GiB in %d pages, for readers and "
      "for writers in %.3f s",
      server->port_.device, server->port_.number, gid.reason, server->memory_.arenas.size(),
      static_cast<double>(bytes) / (1 << 30), pages,
      std::chrono::duration<double>(Clock::Real().Now() - start).count());
  LogInfo("verbs", server->description_);
  server->thread_ = std::thread([raw = server.get()] { raw->Run(); });
  return server;
}

absl::Status Server::OpenQueues() {
  domain_.reset(::ibv_alloc_pd(port_.context.get()));
  if (domain_ == nullptr) return ErrnoError("ibv_alloc_pd");
  channel_.reset(::ibv_create_comp_channel(port_.context.get()));
  if (channel_ == nullptr) return ErrnoError("ibv_create_comp_channel");
  // The thread polls; it must not be held up by an event that another call took.
  if (::fcntl(channel_->fd, F_SETFL, O_NONBLOCK) != 0) return ErrnoError("fcntl");
  const int places = static_cast<int>(
      std::min<int64_t>(int64_t{options_.max_connections} * 2 + 16, int64_t{port_.limits.max_cqe}));
  completions_.reset(::ibv_create_cq(port_.context.get(), places, nullptr, channel_.get(), 0));
  if (completions_ == nullptr) return ErrnoError("ibv_create_cq");
  stop_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  return stop_ ? absl::OkStatus() : ErrnoError("eventfd");
}

absl::Status Server::Register() {
  uint64_t need = memory_.words_bytes;
  for (const ExportedMemory::Arena& arena : memory_.arenas) need += 2 * arena.bytes;
  for (const ExportedMemory::Arena& arena : memory_.arenas) {
    const std::span<std::byte> bytes(arena.base, arena.bytes);
    const std::string name = absl::StrCat("arena ", arena.id.value());
    ArenaKeys keys;
    OASISKV_ASSIGN_OR_RETURN(keys.reader, RegisterMemory(port_, domain_.get(), bytes,
                                                         {absl::StrCat(name, " for readers"),
                                                          IBV_ACCESS_REMOTE_READ, true, need}));
    // Not with relaxed ordering: that a writer's read of its grant word pushes its writes into
    // memory before it is answered is what a commit relies on.
    OASISKV_ASSIGN_OR_RETURN(
        keys.writer,
        RegisterMemory(port_, domain_.get(), bytes,
                       {absl::StrCat(name, " for writers"),
                        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, false, need}));
    arenas_.push_back(std::move(keys));
  }
  // Mapped writable although nobody writes through it: kernels before 6.2 pin shared memory through
  // writable mappings only. The key is for reading.
  OASISKV_ASSIGN_OR_RETURN(
      words_mapping_, Mapping::Map(memory_.words_fd, memory_.words_bytes, Protection::kReadWrite));
  OASISKV_ASSIGN_OR_RETURN(
      words_, RegisterMemory(port_, domain_.get(), {words_mapping_.data(), words_mapping_.size()},
                             {"the grant words", IBV_ACCESS_REMOTE_READ, false, need}));
  return absl::OkStatus();
}

Server::~Server() {
  if (thread_.joinable()) {
    ::eventfd_write(stop_.get(), 1);
    thread_.join();
  }
}

std::string Server::address() const {
  return absl::StrCat(port_.device, ":", static_cast<int>(port_.number));
}

EndpointStats Server::Stats() const {
  MutexLock lock(mutex_);
  EndpointStats stats = stats_;
  stats.connections = peers_.size();
  return stats;
}

absl::Status Server::CheckHello(const ClientHello& hello) const {
  if (hello.incarnation != memory_.incarnation) {
    return MakeError(ErrorCode::kStale,
                     absl::StrCat("this daemon (incarnation ", memory_.incarnation,
                                  ") is not the one asked for (", hello.incarnation,
                                  "): it was restarted; attach again"));
  }
  if (hello.queue_pairs.empty() || hello.queue_pairs.size() > kMaxQueuePairs) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrCat("a hello with ", hello.queue_pairs.size(), " queue pairs; 1 to ",
                                  kMaxQueuePairs, " are served"));
  }
  if (hello.max_rd_atomic == 0) {
    return MakeError(ErrorCode::kUnsupported, "the client's device cannot read (max_rd_atomic 0)");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Server::Accept(absl::string_view hello) {
  OASISKV_ASSIGN_OR_RETURN(const ClientHello client, ParseClientHello(hello));
  OASISKV_ASSIGN_OR_RETURN(const ServerHello answer, Greet(client));
  return Serialize(answer);
}

absl::StatusOr<ServerHello> Server::Greet(const ClientHello& hello) {
  absl::Status status = CheckHello(hello);
  if (status.ok()) {
    MutexLock lock(mutex_);
    if (peers_.size() + connecting_ >= options_.max_connections) {
      status = MakeError(ErrorCode::kCapacity,
                         absl::StrCat("the daemon has its ", options_.max_connections,
                                      " connections over verbs already; close some, or share one "
                                      "between threads"));
    } else {
      ++connecting_;
    }
  }
  if (status.ok()) {
    Peer peer;
    peer.access = hello.access;
    // Without the lock: it waits for the network to resolve the client's address.
    auto answer = Connect(hello, peer);
    // Before anything could close it.
    if (answer.ok() && hello.access == Access::kWrite) {
      authority_.ConnectionOpened(answer->connection);
    }
    MutexLock lock(mutex_);
    --connecting_;
    if (answer.ok()) {
      peers_.emplace(answer->connection, std::move(peer));
      ++stats_.connections_total;
      return answer;
    }
    status = answer.status();
  }
  {
    MutexLock lock(mutex_);
    ++stats_.connections_refused;
  }
  if (log_gate_.Pass()) {
    LogWarning("verbs", absl::StrCat("refused ", GidText(hello.port.gid), ": ",
                                     std::string(status.message())));
  }
  return status;
}

absl::StatusOr<ServerHello> Server::Connect(const ClientHello& hello, Peer& peer) {
  OASISKV_ASSIGN_OR_RETURN(const GidChoice gid, port_.Choose(&hello.port));
  uint64_t token = 0;
  if (::getrandom(&token, sizeof(token), 0) != sizeof(token) || token == 0) {
    return MakeError(ErrorCode::kInternal, "the kernel gives no random bytes");
  }
  ServerHello answer;
  answer.incarnation = memory_.incarnation;
  answer.connection = ConnectionId(token);
  answer.port = port_.AddressWith(gid.entry);
  answer.max_rd_atomic = std::min(hello.max_rd_atomic, ServedReads(port_));
  for (const QueuePairAddress& theirs : hello.queue_pairs) {
    OASISKV_ASSIGN_OR_RETURN(QueuePair pair,
                             CreateQueuePair(domain_.get(), completions_.get(), kDepth));
    QueuePairPath path;
    path.port = &port_;
    path.own_gid_index = gid.entry.index;
    path.own_psn = RandomPsn();
    path.peer = hello.port;
    path.peer_pair = theirs;
    path.max_rd_atomic = answer.max_rd_atomic;
    // A reader could not write even with a writer's key.
    path.remote_access = IBV_ACCESS_REMOTE_READ;
    if (hello.access == Access::kWrite) path.remote_access |= IBV_ACCESS_REMOTE_WRITE;
    OASISKV_RETURN_IF_ERROR(ConnectQueuePair(pair.get(), path));
    answer.queue_pairs.push_back({pair->qp_num, path.own_psn});
    peer.queue_pairs.push_back(std::move(pair));
  }
  for (size_t i = 0; i < arenas_.size(); ++i) {
    const ibv_mr* key =
        (hello.access == Access::kWrite ? arenas_[i].writer : arenas_[i].reader).get();
    answer.arenas.push_back(
        {reinterpret_cast<uint64_t>(memory_.arenas[i].base), memory_.arenas[i].bytes, key->rkey});
  }
  answer.words = {reinterpret_cast<uint64_t>(words_mapping_.data()), words_mapping_.size(),
                  words_->rkey};
  return answer;
}

void Server::Fence(ConnectionId connection, GrantId grant) {
  {
    MutexLock lock(mutex_);
    auto peer = peers_.find(connection);
    if (peer == peers_.end() || peer->second.access != Access::kWrite) {
      ++stats_.requests_refused;
      return;
    }
    ++stats_.requests;
  }
  authority_.WriterFenced(connection, grant);
}

bool Server::Close(ConnectionId connection) {
  Peer peer;
  {
    MutexLock lock(mutex_);
    auto it = peers_.find(connection);
    if (it == peers_.end()) return false;
    peer = std::move(it->second);
    peers_.erase(it);
  }
  for (const QueuePair& pair : peer.queue_pairs) BreakQueuePair(pair.get());
  peer.queue_pairs.clear();
  authority_.ConnectionClosed(connection);
  return true;
}

void Server::Run() {
  MonotonicTime next_probe = Clock::Real().Now() + options_.probe_interval;
  while (true) {
    const MonotonicTime now = Clock::Real().Now();
    if (now >= next_probe) {
      Probe();
      next_probe = now + options_.probe_interval;
    }
    // What came before the CQ was armed makes no event, so it is looked for afterwards.
    ::ibv_req_notify_cq(completions_.get(), 0);
    TakeCompletions();
    std::array<pollfd, 2> wait = {pollfd{stop_.get(), POLLIN, 0}, pollfd{channel_->fd, POLLIN, 0}};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next_probe - now).count();
    ::poll(wait.data(), wait.size(), static_cast<int>(std::clamp<int64_t>(left, 0, 60'000)));
    if (wait[0].revents != 0) return;
    ibv_cq* queue = nullptr;
    void* context = nullptr;
    while (::ibv_get_cq_event(channel_.get(), &queue, &context) == 0) ::ibv_ack_cq_events(queue, 1);
  }
}

void Server::Probe() {
  std::vector<ConnectionId> broken;
  {
    MutexLock lock(mutex_);
    for (auto& [id, peer] : peers_) {
      if (peer.probing) continue;
      if (std::exchange(peer.young, false)) continue;  // it may be connecting its side yet
      ibv_send_wr probe{};
      ibv_send_wr* bad = nullptr;
      probe.wr_id = id.value();
      probe.opcode = IBV_WR_RDMA_WRITE;
      probe.send_flags = IBV_SEND_SIGNALED;
      peer.probing = ::ibv_post_send(peer.queue_pairs[0].get(), &probe, &bad) == 0;
      if (!peer.probing) broken.push_back(id);
    }
  }
  for (const ConnectionId id : broken) Close(id);
}

void Server::TakeCompletions() {
  std::array<ibv_wc, 32> done;
  while (true) {
    const int count = ::ibv_poll_cq(completions_.get(), static_cast<int>(done.size()), done.data());
    if (count <= 0) return;
    for (int i = 0; i < count; ++i) {
      const ConnectionId id(done[i].wr_id);
      if (done[i].status == IBV_WC_SUCCESS) {
        MutexLock lock(mutex_);
        if (auto peer = peers_.find(id); peer != peers_.end()) peer->second.probing = false;
        continue;
      }
      if (Close(id) && log_gate_.Pass()) {
        LogWarning("verbs",
                   absl::StrCat("a client is gone: ", ::ibv_wc_status_str(done[i].status)));
      }
    }
  }
}

}  // namespace oasiskv::fabric::verbs

namespace oasiskv::fabric {

absl::Status CheckVerbsPort(const VerbsPortOptions& options) {
  OASISKV_ASSIGN_OR_RETURN(const verbs::Port port, verbs::OpenPort(options));
  return port.Choose(nullptr).status();
}

absl::StatusOr<std::unique_ptr<Endpoint>> ServeVerbs(const VerbsEndpointOptions& options,
                                                     ExportedMemory memory,
                                                     GrantAuthority& authority) {
  OASISKV_ASSIGN_OR_RETURN(std::unique_ptr<Endpoint> server,
                           verbs::Server::Start(options, std::move(memory), authority));
  return server;
}

}  // namespace oasiskv::fabric
