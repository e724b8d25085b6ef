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
#include "common/fabric/connect.h"
#include "common/fabric/shm/memory_socket.h"
#include "common/fabric/shm/protocol.h"
#include "common/pause_point.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric::shm {
namespace {

constexpr auto kConnectPatience = std::chrono::seconds(5);
// Bytes copied between two looks at the clock: about 100 microseconds of copying.
constexpr uint64_t kBytesPerLook = uint64_t{1} << 20;
// What is fetched ahead of the next run while one is copied; the hardware takes over from there.
constexpr uint64_t kPrefetchBytes = 512;
constexpr uint64_t kCacheLine = 64;
// Mapped at once ahead of use: well under a millisecond of holding the address space's lock for
// reading.
constexpr uint64_t kPopulateBytes = uint64_t{2} << 20;

// Thread contract: see Transfer.
//
// A batch that ended before it was handed out.
class EndedTransfer : public Transfer {
 public:
  EndedTransfer(absl::Status status, const TransferTimes& times)
      : status_(std::move(status)), times_(times) {}
  bool Done() override { return true; }
  absl::Status Wait() override { return status_; }
  void Cancel() override {}
  TransferTimes Times() const override { return times_; }

 private:
  const absl::Status status_;
  const TransferTimes times_;
};

absl::Status DeadlineError(uint64_t bytes) {
  return MakeError(ErrorCode::kDeadlineExceeded,
                   absl::StrFormat("the batch's deadline passed after %d bytes", bytes));
}

void CopyBytes(const ReadPiece*, std::byte* mapped, std::byte* local, uint64_t bytes) {
  std::memcpy(local, mapped, bytes);
}
void CopyBytes(const WritePiece*, std::byte* mapped, const std::byte* local, uint64_t bytes) {
  std::memcpy(mapped, local, bytes);
}

void Prefetch(const std::byte* from, uint64_t bytes) {
  for (uint64_t i = 0; i < std::min(bytes, kPrefetchBytes); i += kCacheLine) {
    __builtin_prefetch(from + i);
  }
}

#ifdef MADV_POPULATE_READ
constexpr int kMadvPopulateRead = MADV_POPULATE_READ;
#else
constexpr int kMadvPopulateRead = 22;  // of the kernel; older C libraries do not name it
#endif

constexpr Access AccessOf(const ReadPiece*) { return Access::kRead; }
constexpr Access AccessOf(const WritePiece*) { return Access::kWrite; }

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

std::unique_ptr<Transfer> ShmConnection::Read(std::shared_ptr<const GrantView> grant,
                                              std::span<const ReadPiece> pieces,
                                              MonotonicTime deadline) {
  counters_.reads.fetch_add(1, std::memory_order_relaxed);
  return RunBatch(grant.get(), pieces, deadline);
}

std::unique_ptr<Transfer> ShmConnection::Write(std::shared_ptr<const GrantView> grant,
                                               std::span<const WritePiece> pieces,
                                               MonotonicTime deadline) {
  counters_.writes.fetch_add(1, std::memory_order_relaxed);
  return RunBatch(grant.get(), pieces, deadline);
}

template <typename Piece>
std::unique_ptr<Transfer> ShmConnection::RunBatch(const GrantView* grant,
                                                  std::span<const Piece> pieces,
                                                  MonotonicTime deadline) {
  constexpr bool kReads = std::is_same_v<Piece, ReadPiece>;
  const MonotonicTime start = Clock::Real().Now();
  Progress progress;
  progress.checked = start;
  absl::Status status = Move(grant, pieces, start, deadline, progress);
  auto add = [](std::atomic<uint64_t>& to, uint64_t n) {
    to.fetch_add(n, std::memory_order_relaxed);
  };
  add(counters_.pieces, pieces.size());
  add(counters_.requests, progress.runs);
  add(kReads ? counters_.bytes_read : counters_.bytes_written, progress.bytes);
  add(counters_.grant_checks, progress.word_checked ? 1 : 0);
  CountEnd(status);
  TransferTimes times;
  times.prepare = progress.checked - start;
  times.wire = Clock::Real().Now() - progress.checked;
  return std::make_unique<EndedTransfer>(std::move(status), times);
}

template <typename Piece>
absl::Status ShmConnection::Move(const GrantView* grant, std::span<const Piece> pieces,
                                 MonotonicTime start, MonotonicTime deadline, Progress& progress) {
  constexpr Access kAccess = AccessOf(static_cast<const Piece*>(nullptr));
  constexpr bool kWrites = kAccess == Access::kWrite;
  if (grant == nullptr) return MakeError(ErrorCode::kInvalidArgument, "a batch without a grant");
  if (grant->access != kAccess) {
    return MakeError(ErrorCode::kPermissionDenied,
                     kWrites ? "a write under a reader's grant; open the sequence to write"
                             : "a read under a writer's grant; attach the sequence to read");
  }
  if (kWrites && access_ != Access::kWrite) {
    return MakeError(ErrorCode::kPermissionDenied,
                     "this shm connection was made for reading; connect with Access::kWrite");
  }
  OASISKV_RETURN_IF_ERROR(CheckPieces(*grant, pieces));
  if (lost_.load(std::memory_order_acquire)) return Health();
  if (start >= deadline) return DeadlineError(0);

  if constexpr (kWrites) {
    const WriteGate::Pass pass(gate_, grant->id);
    if (!pass) {
      return MakeError(ErrorCode::kStale, "this client has fenced the grant: it writes no more");
    }
    // What passes here may still land after the grant is revoked; the frames wait for the fence, or
    // for our end.
    OASISKV_RETURN_IF_ERROR(CheckWord(*grant));
    OASISKV_PAUSE_POINT("shm.write.before_copy");
    OASISKV_RETURN_IF_ERROR(CopyRuns(*grant, pieces, deadline, progress));
    std::atomic_thread_fence(std::memory_order_seq_cst);
    progress.word_checked = true;
    return CheckWord(*grant);
  } else {
    // Only to save the copy: what counts is the look at the word after the data.
    OASISKV_RETURN_IF_ERROR(CheckWord(*grant));
    OASISKV_RETURN_IF_ERROR(CopyRuns(*grant, pieces, deadline, progress));
    OASISKV_PAUSE_POINT("shm.read.before_check");
    // No load of the copy may be done after the load of the word. An acquire fence would do for
    // plain loads; the full one also holds for the string instructions that a memcpy may use, and
    // costs some nanoseconds a batch.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    progress.word_checked = true;
    return CheckWord(*grant);
  }
}

template <typename Piece>
absl::Status ShmConnection::CopyRuns(const GrantView& grant, std::span<const Piece> pieces,
                                     MonotonicTime deadline, Progress& progress) {
  constexpr bool kReads = std::is_same_v<Piece, ReadPiece>;
  RunIterator<Piece> runs(grant, pieces, FrameSpan::kAcrossFrames);
  progress.checked = Clock::Real().Now();
  Run<Piece> run;
  if (!runs.Next(run)) return absl::OkStatus();
  OASISKV_ASSIGN_OR_RETURN(std::byte * mapped, MappedRun(run));
  uint64_t until_look = kBytesPerLook;
  for (bool more = true; more;) {
    const Run<Piece> now = run;
    std::byte* const at = mapped;
    more = runs.Next(run);
    if (more) {
      OASISKV_ASSIGN_OR_RETURN(mapped, MappedRun(run));
      if constexpr (kReads) {
        Prefetch(mapped, run.bytes);
      } else {
        Prefetch(run.local, run.bytes);
      }
    }
    ++progress.runs;
    for (uint64_t done = 0; done < now.bytes;) {
      const uint64_t part = std::min(now.bytes - done, until_look);
      CopyBytes(static_cast<const Piece*>(nullptr), at + done, now.local + done, part);
      done += part;
      until_look -= part;
      progress.bytes += part;
      if (until_look > 0) continue;
      until_look = kBytesPerLook;
      if (kReads) OASISKV_PAUSE_POINT("shm.read.mid_copy");
      if ((more || done < now.bytes) && Clock::Real().Now() >= deadline) {
        return DeadlineError(progress.bytes);
      }
    }
  }
  return absl::OkStatus();
}

template <typename Piece>
absl::StatusOr<std::byte*> ShmConnection::MappedRun(const Run<Piece>& run) const {
  const size_t arena = run.address.arena.value();
  if (arena < arenas_.size()) {
    const Mapping& mapping = arenas_[arena];
    if (run.address.offset <= mapping.size() && run.bytes <= mapping.size() - run.address.offset) {
      return mapping.data() + run.address.offset;
    }
  }
  return MakeError(ErrorCode::kInternal,
                   absl::StrFormat("the grant places %d bytes at offset %d of arena %d, which the "
                                   "daemon does not share; its frame list is wrong",
                                   run.bytes, run.address.offset, arena));
}

absl::Status ShmConnection::CheckWord(const GrantView& grant) const {
  const uint64_t slot = grant.word_slot.value();
  if (slot >= words_.size() / sizeof(uint64_t)) {
    return MakeError(ErrorCode::kInternal, absl::StrFormat("the grant's word is number %d of %d",
                                                           slot, words_.size() / sizeof(uint64_t)));
  }
  const auto* word = reinterpret_cast<const uint64_t*>(words_.data()) + slot;
  return CheckGrantWord(__atomic_load_n(word, __ATOMIC_ACQUIRE), grant.epoch);
}

void ShmConnection::CountEnd(const absl::Status& status) {
  if (status.ok()) return;
  const ErrorCode code = ErrorCodeOf(status);
  (code == ErrorCode::kStale              ? counters_.stale
   : code == ErrorCode::kLeaseExpired     ? counters_.expired
   : code == ErrorCode::kDeadlineExceeded ? counters_.deadline
                                          : counters_.failed)
      .fetch_add(1, std::memory_order_relaxed);
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
