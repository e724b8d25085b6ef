// A connection's life: connecting and mapping, fences, noticing the daemon's end.
#include "common/fabric/shm/connection.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/fabric/shm/memory_socket.h"
#include "common/fabric/shm/protocol.h"
#include "common/fabric/shm/shm.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric::shm {
namespace {

constexpr auto kConnectPatience = std::chrono::seconds(5);
// Mapped at once ahead of use: well under a millisecond of holding the address space's lock for
// reading.
constexpr uint64_t kPopulateBytes = uint64_t{2} << 20;

#ifdef MADV_POPULATE_READ
constexpr int kMadvPopulateRead = MADV_POPULATE_READ;
#else
constexpr int kMadvPopulateRead = 22;  // of the kernel; older C libraries do not name it
#endif

// The size is asked of the kernel: a mapping beyond the end of the file would be a SIGBUS later.
absl::StatusOr<Mapping> MapDescriptor(int fd, uint64_t bytes, Protection protection) {
  struct stat info;
  if (::fstat(fd, &info) != 0 || info.st_size < 0 || static_cast<uint64_t>(info.st_size) < bytes) {
    return MakeError(ErrorCode::kInternal,
                     absl::StrFormat("the daemon promised %d bytes with a descriptor of %d", bytes,
                                     info.st_size));
  }
  return Mapping::Map(fd, bytes, protection);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShmConnection>> ShmConnection::Connect(
    const std::string& socket_path, uint64_t incarnation, Access access) {
  const MonotonicTime deadline = Clock::Real().Now() + kConnectPatience;
  OASISKV_ASSIGN_OR_RETURN(UniqueFd socket, ConnectTo(socket_path, deadline));
  Hello hello;
  hello.access = static_cast<uint32_t>(access);
  // When this fails the daemon has refused us already, and its answer says why.
  SendMessage(socket.get(), std::as_bytes(std::span<const Hello, 1>(&hello, 1)), {});

  std::vector<std::byte> buffer(sizeof(Welcome) +
                                std::max(kMaxArenas * sizeof(uint64_t), kMaxMessageText));
  auto received = ReceiveMessage(socket.get(), buffer, deadline);
  if (!received.ok()) {
    return Annotate(received.status(), absl::StrFormat("the daemon at '%s'", socket_path));
  }
  Welcome welcome;
  if (received->bytes >= sizeof(welcome)) std::memcpy(&welcome, buffer.data(), sizeof(welcome));
  const uint64_t rest = received->bytes - std::min(received->bytes, sizeof(welcome));
  if (received->bytes < sizeof(welcome) || welcome.magic != kMagic) {
    return MakeError(ErrorCode::kPeerLost,
                     absl::StrFormat("what listens at '%s' is no oasiskv daemon", socket_path));
  }
  if (welcome.error != 0) {
    const size_t text = std::min<uint64_t>(welcome.message_bytes, rest);
    return Annotate(
        MakeError(static_cast<ErrorCode>(welcome.error),
                  absl::string_view(reinterpret_cast<const char*>(buffer.data()) + sizeof(welcome),
                                    text)),
        absl::StrFormat("refused by the daemon at '%s'", socket_path));
  }
  if (welcome.version != kVersion) {
    return MakeError(ErrorCode::kUnsupported,
                     absl::StrFormat("the daemon at '%s' speaks version %d of the shm protocol, "
                                     "this client version %d; install equal versions",
                                     socket_path, welcome.version, kVersion));
  }
  if (welcome.incarnation != incarnation) {
    return MakeError(ErrorCode::kStale,
                     absl::StrFormat("the daemon at '%s' is another one (incarnation %d) than the "
                                     "one asked for (%d): it was restarted; attach again",
                                     socket_path, welcome.incarnation, incarnation));
  }
  if (rest != welcome.arenas * sizeof(uint64_t) ||
      received->descriptors.size() != size_t{welcome.arenas} + 1) {
    return MakeError(ErrorCode::kInternal,
                     absl::StrFormat("the daemon at '%s' named %d arenas and sent %d descriptors",
                                     socket_path, welcome.arenas, received->descriptors.size()));
  }
  const Protection protection =
      access == Access::kWrite ? Protection::kReadWrite : Protection::kReadOnly;
  std::vector<Mapping> arenas;
  for (uint32_t i = 0; i < welcome.arenas; ++i) {
    uint64_t bytes;
    std::memcpy(&bytes, buffer.data() + sizeof(welcome) + i * sizeof(bytes), sizeof(bytes));
    OASISKV_ASSIGN_OR_RETURN(Mapping arena,
                             MapDescriptor(received->descriptors[i].get(), bytes, protection));
    arenas.push_back(std::move(arena));
  }
  OASISKV_ASSIGN_OR_RETURN(Mapping words,
                           MapDescriptor(received->descriptors.back().get(), welcome.words_bytes,
                                         Protection::kReadOnly));
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) {
    return MakeError(ErrorCode::kInternal, absl::StrFormat("eventfd: %s", std::strerror(errno)));
  }
  std::unique_ptr<ShmConnection> connection(
      new ShmConnection(socket_path, access, ConnectionId(welcome.connection), std::move(socket),
                        std::move(wake), std::move(arenas), std::move(words)));
  connection->watcher_ = std::thread([raw = connection.get()] { raw->WatchSocket(); });
  return connection;
}

ShmConnection::ShmConnection(std::string path, Access access, ConnectionId id, UniqueFd socket,
                             UniqueFd wake, std::vector<Mapping> arenas, Mapping words)
    : path_(std::move(path)),
      access_(access),
      id_(id),
      socket_(std::move(socket)),
      wake_(std::move(wake)),
      arenas_(std::move(arenas)),
      words_(std::move(words)) {}

ShmConnection::~ShmConnection() {
  stop_.store(true);
  ::eventfd_write(wake_.get(), 1);
  if (watcher_.joinable()) watcher_.join();
}

void ShmConnection::FenceWriter(GrantId grant) {
  if (access_ != Access::kWrite) return;  // nothing was or can be written through this connection
  if (!gate_.Close(grant)) return;
  {
    MutexLock lock(fences_mutex_);
    pending_fences_.push_back(grant);
  }
  // A stopped daemon takes no messages: its fences wait for the watcher, the caller does not.
  if (!SendPendingFences()) ::eventfd_write(wake_.get(), 1);
}

bool ShmConnection::SendPendingFences() {
  MutexLock lock(fences_mutex_);
  while (!pending_fences_.empty() && !lost_.load(std::memory_order_relaxed)) {
    Fence fence;
    fence.grant = pending_fences_.front().value();
    if (!SendMessage(socket_.get(), std::as_bytes(std::span<const Fence, 1>(&fence, 1)), {})) {
      return false;
    }
    pending_fences_.pop_front();
  }
  return true;
}

bool ShmConnection::HasPendingFences() {
  MutexLock lock(fences_mutex_);
  return !pending_fences_.empty();
}

// The first touch of a page costs as much as copying some KiB, so the page tables are filled in the
// background. Where the kernel cannot (before 5.14) each page pays at its first read.
bool ShmConnection::PopulateNext(PopulatePosition& at) const {
  if (at.arena == arenas_.size()) return false;
  const Mapping& arena = arenas_[at.arena];
  const uint64_t bytes = std::min(kPopulateBytes, arena.size() - at.offset);
  if (::madvise(arena.data() + at.offset, bytes, kMadvPopulateRead) != 0) return false;
  at.offset += bytes;
  if (at.offset == arena.size()) at = {at.arena + 1, 0};
  return true;
}

// The daemon says nothing after its welcome, so whatever can be read here is its end.
void ShmConnection::WatchSocket() {
  PopulatePosition position;
  bool populating = true;
  while (!stop_.load()) {
    populating = populating && PopulateNext(position);
    const short socket_events = POLLIN | (HasPendingFences() ? POLLOUT : 0);
    std::array<pollfd, 2> waiting{{{socket_.get(), socket_events, 0}, {wake_.get(), POLLIN, 0}}};
    if (::poll(waiting.data(), waiting.size(), populating ? 0 : -1) < 0) continue;
    if ((waiting[1].revents & POLLIN) != 0) {
      eventfd_t ignored;
      ::eventfd_read(wake_.get(), &ignored);
    }
    if ((waiting[0].revents & (POLLIN | POLLHUP | POLLERR)) != 0) {
      MarkLost();
      return;
    }
    if ((waiting[0].revents & POLLOUT) != 0) SendPendingFences();
  }
}

void ShmConnection::MarkLost() {
  lost_.store(true, std::memory_order_release);
  MutexLock lock(fences_mutex_);
  pending_fences_.clear();  // nobody is left to hear them
}

absl::Status ShmConnection::Health() {
  // Asks the kernel, so that the answer does not wait for the watcher.
  pollfd socket{socket_.get(), POLLIN, 0};
  if (!lost_.load(std::memory_order_acquire) && ::poll(&socket, 1, 0) > 0) MarkLost();
  if (!lost_.load(std::memory_order_acquire)) return absl::OkStatus();
  return MakeError(ErrorCode::kPeerLost,
                   absl::StrFormat("the daemon at '%s' is gone (it closed the shm socket); connect "
                                   "again",
                                   path_));
}

std::string ShmConnection::Describe() const {
  uint64_t bytes = 0;
  for (const Mapping& arena : arenas_) bytes += arena.size();
  return absl::StrFormat("shm %s: %d arenas, %d MiB, mapped %s", path_, arenas_.size(), bytes >> 20,
                         access_ == Access::kWrite ? "read-write" : "read-only");
}

ConnectionStats ShmConnection::Stats() const {
  ConnectionStats stats;
  stats.reads = counters_.reads.load();
  stats.writes = counters_.writes.load();
  stats.pieces = counters_.pieces.load();
  stats.requests = counters_.requests.load();
  stats.bytes_read = counters_.bytes_read.load();
  stats.bytes_written = counters_.bytes_written.load();
  stats.grant_checks = counters_.grant_checks.load();
  stats.stale = counters_.stale.load();
  stats.expired = counters_.expired.load();
  stats.deadline = counters_.deadline.load();
  stats.failed = counters_.failed.load();
  return stats;
}

}  // namespace oasiskv::fabric::shm

namespace oasiskv::fabric {

absl::StatusOr<std::unique_ptr<Connection>> ConnectShm(const std::string& socket_path,
                                                       uint64_t incarnation, Access access) {
  OASISKV_ASSIGN_OR_RETURN(std::unique_ptr<Connection> connection,
                           shm::ShmConnection::Connect(socket_path, incarnation, access));
  return connection;
}

}  // namespace oasiskv::fabric
