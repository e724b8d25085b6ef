// The endpoint's half that makes its objects: the opened device, registrations, the thread.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/fabric/verbs/memory.h"
#include "common/fabric/verbs/server.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric::verbs {
namespace {

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
      "for "
      "writers in %.3f s",
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
