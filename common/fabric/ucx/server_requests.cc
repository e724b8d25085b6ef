// What clients ask for: every field is checked, then the daemon's word on the grant.
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/fabric/ucx/server.h"
#include "common/pause_point.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric::ucx {
namespace {

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
  if (arrival.id == static_cast<unsigned>(MessageId::kJoin)) return OnJoin(peer, arrival);
  if (arrival.id == static_cast<unsigned>(MessageId::kFence)) return OnFence(peer, arrival);
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
    peer.set_greeted(worker_->LanesOf(peer.endpoint()));
    peer.set_offered(!keys_.empty() && peer.lanes().one_sided);
    if (!peer.offered()) {
      CountTransport(peer, 1);
      LogTransport(peer);
    }
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
  counters_.bytes_written.fetch_add(bytes, std::memory_order_relaxed);
  OASISKV_PAUSE_POINT("ucx.server.before_trailer");
  // Sampled after the copy: a write is good only if the grant was still whole when its last byte
  // had gone in.
  peer.SendTrailer(request.request, absl::OkStatus(), authority_.GrantWord(grant));
}

}  // namespace oasiskv::fabric::ucx
