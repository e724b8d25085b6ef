// The engine's half that makes its objects: queue pairs, registrations, the connection to the
// daemon.
#include <fcntl.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/fabric/verbs/device_memory.h"
#include "common/fabric/verbs/engine.h"
#include "common/fabric/verbs/memory.h"
#include "common/fabric/verbs/queue_pair.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric::verbs {
namespace {

// Places of a queue pair beyond those for data: grant words are never held up by data.
constexpr uint32_t kWordRoom = 8;

absl::Status ErrnoError(absl::string_view what) {
  return MakeError(ErrorCode::kInternal, absl::StrCat(what, ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const VerbsConnectOptions& options) {
  if (options.queue_pairs == 0 || options.queue_pairs > kMaxQueuePairs ||
      options.max_rd_atomic == 0 || options.max_rd_atomic > 255 || options.window_bytes == 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrCat("queue_pairs=", options.queue_pairs, " (1 to ", kMaxQueuePairs,
                                  "), max_rd_atomic=", options.max_rd_atomic,
                                  " (1 to 255), window_bytes=", options.window_bytes, " (not 0)"));
  }
  OASISKV_ASSIGN_OR_RETURN(Port port, OpenPort(options.port));
  std::unique_ptr<Engine> engine(new Engine(options, std::move(port)));
  OASISKV_RETURN_IF_ERROR(engine->OpenQueues());
  return engine;
}

absl::Status Engine::OpenQueues() {
  OASISKV_ASSIGN_OR_RETURN(const GidChoice gid, port_.Choose(nullptr));
  gid_ = gid.entry;
  ibv_context* const context = port_.context.get();
  max_rd_atomic_ =
      std::min(options_.max_rd_atomic,
               static_cast<uint32_t>(std::clamp(port_.limits.max_qp_init_rd_atom, 0, 255)));
  if (max_rd_atomic_ == 0) {
    return MakeError(
        ErrorCode::kUnsupported,
        absl::StrCat("the RDMA device '", port_.device, "' cannot read (max_qp_init_rd_atom 0)"));
  }
  depth_ = max_rd_atomic_ * kWindowFactor + kWordRoom;
  const uint32_t places = options_.queue_pairs * depth_;

  domain_.reset(::ibv_alloc_pd(context));
  if (domain_ == nullptr) return ErrnoError("ibv_alloc_pd");
  channel_.reset(::ibv_create_comp_channel(context));
  if (channel_ == nullptr) return ErrnoError("ibv_create_comp_channel");
  if (::fcntl(channel_->fd, F_SETFL, O_NONBLOCK) != 0) return ErrnoError("fcntl");
  completions_.reset(
      ::ibv_create_cq(context, static_cast<int>(places), nullptr, channel_.get(), 0));
  if (completions_ == nullptr) return ErrnoError("ibv_create_cq");
  wake_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_) return ErrnoError("eventfd");

  const uint64_t words_bytes = places * sizeof(uint64_t);
  OASISKV_ASSIGN_OR_RETURN(words_fd_, CreateMemfd("oasiskv-words", words_bytes, PageKind::kNormal));
  OASISKV_ASSIGN_OR_RETURN(words_,
                           Mapping::Map(words_fd_.get(), words_bytes, Protection::kReadWrite));
  OASISKV_ASSIGN_OR_RETURN(
      words_key_, RegisterMemory(port_, domain_.get(), {words_.data(), words_bytes},
                                 {"the connection's words", IBV_ACCESS_LOCAL_WRITE, false,
                                  words_bytes + BouncePool::kAreas * BouncePool::kAreaBytes}));
  OASISKV_ASSIGN_OR_RETURN(BouncePool bounce, BouncePool::Create(port_, domain_.get()));

  MutexLock lock(mutex_);
  bounce_.emplace(std::move(bounce));
  for (uint32_t i = 0; i < kChunkRequests; ++i) {
    list_[i].next = i + 1 < kChunkRequests ? &list_[i + 1] : nullptr;
    list_[i].sg_list = &pieces_[i];
    list_[i].num_sge = 1;
    list_[i].opcode = list_opcode_;
  }
  chunks_.resize(places);
  for (uint32_t i = places; i-- > 0;) {
    chunks_[i].id = uint64_t{i} << kPlaceShift;
    free_chunks_.push_back(i);
  }
  for (uint32_t i = 0; i < options_.queue_pairs; ++i) {
    Pair pair;
    OASISKV_ASSIGN_OR_RETURN(pair.handle,
                             CreateQueuePair(domain_.get(), completions_.get(), depth_));
    pair.psn = RandomPsn();
    pairs_.push_back(std::move(pair));
  }
  return absl::OkStatus();
}

ClientHello Engine::Hello() {
  ClientHello hello;
  hello.incarnation = options_.incarnation;
  hello.access = options_.access;
  hello.port = port_.AddressWith(gid_);
  hello.max_rd_atomic = max_rd_atomic_;
  MutexLock lock(mutex_);
  for (const Pair& pair : pairs_) hello.queue_pairs.push_back({pair.handle->qp_num, pair.psn});
  return hello;
}

absl::Status Engine::Start(const ServerHello& hello) {
  MutexLock lock(mutex_);
  if (hello.incarnation != options_.incarnation) {
    return MakeError(ErrorCode::kStale,
                     absl::StrCat("the daemon is another one (incarnation ", hello.incarnation,
                                  ") than the one asked for (", options_.incarnation,
                                  "): it was restarted; attach again"));
  }
  if (hello.queue_pairs.size() != pairs_.size() || hello.max_rd_atomic == 0 ||
      hello.max_rd_atomic > max_rd_atomic_) {
    return MakeError(ErrorCode::kInternal,
                     absl::StrCat("the daemon answered with ", hello.queue_pairs.size(),
                                  " queue pairs for ", pairs_.size(), " and max_rd_atomic ",
                                  hello.max_rd_atomic, " for ", max_rd_atomic_));
  }
  server_ = hello;
  window_ = hello.max_rd_atomic * kWindowFactor;
  for (uint32_t i = 0; i < pairs_.size(); ++i) {
    QueuePairPath path;
    path.port = &port_;
    path.own_gid_index = gid_.index;
    path.own_psn = pairs_[i].psn;
    path.peer = hello.port;
    path.peer_pair = hello.queue_pairs[i];
    path.max_rd_atomic = hello.max_rd_atomic;
    path.peer_patience = options_.peer_patience;
    // For the daemon's empty writes, by which it learns that we are there; no memory of ours is
    // registered for a peer.
    path.remote_access = IBV_ACCESS_REMOTE_WRITE;
    OASISKV_RETURN_IF_ERROR(ConnectQueuePair(pairs_[i].handle.get(), path));
  }
  last_heard_ = Clock::Real().Now();
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Region>> Engine::AddRegion(std::span<std::byte> memory) {
  auto region = std::make_shared<Region>();
  region->begin = memory.data();
  region->bytes = memory.size();
  OASISKV_ASSIGN_OR_RETURN(
      region->key,
      RegisterMemory(port_, domain_.get(), memory,
                     {"a buffer of the caller", IBV_ACCESS_LOCAL_WRITE, true, memory.size()}));
  MutexLock lock(mutex_);
  regions_.Add(region);
  return region;
}

absl::StatusOr<std::shared_ptr<Region>> Engine::AddDeviceRegion(const DeviceBuffer& memory) {
  auto region = std::make_shared<Region>();
  region->begin = reinterpret_cast<std::byte*>(memory.address);
  region->bytes = memory.bytes;
  OASISKV_ASSIGN_OR_RETURN(region->key, RegisterDeviceMemory(port_, domain_.get(), memory));
  MutexLock lock(mutex_);
  regions_.Add(region);
  return region;
}

void Engine::RemoveRegion(const Region* region) {
  MutexLock lock(mutex_);
  regions_.Remove(region);
}

}  // namespace oasiskv::fabric::verbs
