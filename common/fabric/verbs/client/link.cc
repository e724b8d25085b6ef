#include "common/fabric/verbs/client/link.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/fabric/verbs/memory.h"
#include "common/fabric/verbs/queue_pair.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric::verbs {
namespace {

// A queue pair's reads, posted and not completed, in multiples of what its device has on the wire
// at a time: enough that the next are there when one completes, few enough that what comes first by
// priority comes soon.
constexpr uint32_t kWindowFactor = 2;
// Places of a queue pair beyond those for data: grant words never wait for data.
constexpr uint32_t kWordRoom = 8;

absl::Status ErrnoError(absl::string_view what) {
  return MakeError(ErrorCode::kInternal, absl::StrCat(what, ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<Link> Link::Open(const VerbsConnectOptions& options) {
  if (options.queue_pairs == 0 || options.queue_pairs > kMaxQueuePairs ||
      options.max_rd_atomic == 0 || options.max_rd_atomic > 255 || options.window_bytes == 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrCat("queue_pairs=", options.queue_pairs, " (1 to ", kMaxQueuePairs,
                                  "), max_rd_atomic=", options.max_rd_atomic,
                                  " (1 to 255), window_bytes=", options.window_bytes, " (not 0)"));
  }
  OASISKV_ASSIGN_OR_RETURN(Port port, OpenPort(options.port));
  OASISKV_ASSIGN_OR_RETURN(const GidChoice gid, port.Choose(nullptr));
  Link link(options, std::move(port), gid.entry);
  OASISKV_RETURN_IF_ERROR(link.MakeObjects());
  return link;
}

absl::Status Link::MakeObjects() {
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

  domain_.reset(::ibv_alloc_pd(context));
  if (domain_ == nullptr) return ErrnoError("ibv_alloc_pd");
  channel_.reset(::ibv_create_comp_channel(context));
  if (channel_ == nullptr) return ErrnoError("ibv_create_comp_channel");
  if (::fcntl(channel_->fd, F_SETFL, O_NONBLOCK) != 0) return ErrnoError("fcntl");
  completions_.reset(
      ::ibv_create_cq(context, static_cast<int>(places()), nullptr, channel_.get(), 0));
  if (completions_ == nullptr) return ErrnoError("ibv_create_cq");

  const uint64_t words_bytes = places() * sizeof(uint64_t);
  OASISKV_ASSIGN_OR_RETURN(words_fd_, CreateMemfd("oasiskv-words", words_bytes, PageKind::kNormal));
  OASISKV_ASSIGN_OR_RETURN(words_,
                           Mapping::Map(words_fd_.get(), words_bytes, Protection::kReadWrite));
  OASISKV_ASSIGN_OR_RETURN(
      words_key_, RegisterMemory(port_, domain_.get(), {words_.data(), words_bytes},
                                 {"the connection's words", IBV_ACCESS_LOCAL_WRITE, false,
                                  words_bytes + BouncePool::kAreas * BouncePool::kAreaBytes}));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Pair>> Link::MakePairs() const {
  std::vector<Pair> pairs(options_.queue_pairs);
  for (Pair& pair : pairs) {
    OASISKV_ASSIGN_OR_RETURN(pair.handle,
                             CreateQueuePair(domain_.get(), completions_.get(), depth_));
    pair.psn = RandomPsn();
  }
  return pairs;
}

ClientHello Link::Hello(std::span<const Pair> pairs) const {
  ClientHello hello;
  hello.incarnation = options_.incarnation;
  hello.access = options_.access;
  hello.port = port_.AddressWith(gid_);
  hello.max_rd_atomic = max_rd_atomic_;
  for (const Pair& pair : pairs) hello.queue_pairs.push_back({pair.handle->qp_num, pair.psn});
  return hello;
}

absl::Status Link::Connect(const ServerHello& hello, std::span<Pair> pairs) {
  if (hello.incarnation != options_.incarnation) {
    return MakeError(ErrorCode::kStale,
                     absl::StrCat("the daemon is another one (incarnation ", hello.incarnation,
                                  ") than the one asked for (", options_.incarnation,
                                  "): it was restarted; attach again"));
  }
  if (hello.queue_pairs.size() != pairs.size() || hello.max_rd_atomic == 0 ||
      hello.max_rd_atomic > max_rd_atomic_) {
    return MakeError(ErrorCode::kInternal,
                     absl::StrCat("the daemon answered with ", hello.queue_pairs.size(),
                                  " queue pairs for ", pairs.size(), " and max_rd_atomic ",
                                  hello.max_rd_atomic, " for ", max_rd_atomic_));
  }
  server_ = hello;
  window_ = hello.max_rd_atomic * kWindowFactor;
  for (uint32_t i = 0; i < pairs.size(); ++i) {
    QueuePairPath path;
    path.port = &port_;
    path.own_gid_index = gid_.index;
    path.own_psn = pairs[i].psn;
    path.peer = hello.port;
    path.peer_pair = hello.queue_pairs[i];
    path.max_rd_atomic = hello.max_rd_atomic;
    path.peer_patience = options_.peer_patience;
    // For the daemon's empty writes, by which it learns that this client is there; no memory of
    // this side is registered for a peer.
    path.remote_access = IBV_ACCESS_REMOTE_WRITE;
    OASISKV_RETURN_IF_ERROR(ConnectQueuePair(pairs[i].handle.get(), path));
  }
  return absl::OkStatus();
}

}  // namespace oasiskv::fabric::verbs
