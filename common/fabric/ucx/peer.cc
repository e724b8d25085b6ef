#include "common/fabric/ucx/peer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/pause_point.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric::ucx {
namespace {

// Data messages of one peer that UCX holds at a time: enough that the socket never runs dry.
constexpr size_t kMaxPosted = 4;
// Messages of any kind: a client that takes none of the answers to its errors is cut off here.
constexpr size_t kMaxInFlight = 2 * kMaxOpenRequests;
// Pieces that one message can gather from where they lie (UCX allows 16, of which it needs some
// itself).
constexpr size_t kMaxGather = 14;
// A message of kMaxGather pieces that would be smaller than this is copied together instead, up to
// kMaxPayloadBytes.
constexpr uint64_t kMinGatherBytes = uint64_t{28} << 10;

// A reply up to this size is copied and goes out as one message, trailer and all, together with
// others that wait and are as small: a second message costs more than the copy.
constexpr uint64_t kMaxWholeBytes = uint64_t{32} << 10;

absl::string_view TextOf(const absl::Status& status) {
  absl::string_view text(status.message());
  // MakeError at the other end puts the code's name before the text again.
  const std::string prefix = absl::StrCat(ErrorCodeName(ErrorCodeOf(status)), ": ");
  if (absl::StartsWith(text, prefix)) text.remove_prefix(prefix.size());
  return text.substr(0, kMaxTextBytes);
}

std::vector<std::byte> Bytes(absl::string_view text) {
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  return {first, first + text.size()};
}

}  // namespace

class Peer::SmallMessage : public Message {
 public:
  SmallMessage(Peer& peer, MessageId message_id, const void* head, size_t head_bytes,
               absl::string_view text)
      : Message(message_id, head, head_bytes), peer_(peer) {
    owned = Bytes(text);
  }
  void OnSent(bool ok) override { peer_.Sent(ok); }

 private:
  Peer& peer_;
};

class Peer::DataMessage : public Message {
 public:
  DataMessage(Peer& peer, std::shared_ptr<ReadJob> job, const Data& head)
      : Message(MessageId::kData, &head, sizeof(head)), peer_(peer), job_(std::move(job)) {}
  void OnSent(bool ok) override { peer_.DataSent(job_, ok); }

 private:
  Peer& peer_;
  const std::shared_ptr<ReadJob> job_;
};

Peer::Peer(Worker& worker, GrantAuthority& authority, ServerCounters& counters,
           std::vector<Peer*>& ready, ucp_ep* endpoint, std::string address, MonotonicTime now)
    : worker_(worker),
      authority_(authority),
      counters_(counters),
      ready_(ready),
      endpoint_(endpoint),
      address_(std::move(address)),
      connected_at_(now),
      last_sent_(now) {}

void Peer::MarkReady() {
  if (std::exchange(in_ready_, true)) return;
  ready_.push_back(this);
}

void Peer::Break(absl::string_view why) {
  if (!broken()) broken_why_ = std::string(why);
  MarkReady();
}

void Peer::DropJobs() {
  jobs_.clear();
  finished_.clear();
}

void Peer::Enqueue(std::unique_ptr<ReadJob> job) {
  jobs_.push_back(std::move(job));
  MarkReady();
}

void Peer::Post(std::unique_ptr<Message> message) {
  if (in_flight_++ == 0) last_sent_ = std::chrono::steady_clock::now();
  if (in_flight_ > kMaxInFlight) Break("it does not take the answers to what it asks");
  worker_.Send(endpoint_, std::move(message), Worker::Reply::kNo);
}

void Peer::Sent(bool ok) {
  --in_flight_;
  last_sent_ = std::chrono::steady_clock::now();
  if (!ok) Break("a message could not be sent");
  if (!jobs_.empty()) MarkReady();  // the next may have waited for this one to leave
}

void Peer::DataSent(const std::shared_ptr<ReadJob>& job, bool ok) {
  --job->in_flight;
  if (ok && job->posted && job->in_flight == 0) finished_.push_back(job);
  MarkReady();
  Sent(ok);
}

void Peer::SendHelloReply(const absl::Status& status, uint64_t incarnation) {
  const absl::string_view text = TextOf(status);
  HelloReply reply;
  reply.incarnation = incarnation;
  reply.code = static_cast<int32_t>(ErrorCodeOf(status));
  reply.text_bytes = static_cast<uint32_t>(text.size());
  Post(std::make_unique<SmallMessage>(*this, reply.head.id, &reply, sizeof(reply), text));
}

void Peer::SendPing() {
  const Ping ping;
  Post(std::make_unique<SmallMessage>(*this, ping.head.id, &ping, sizeof(ping), ""));
}

void Peer::SendTrailer(uint64_t request, const absl::Status& status, uint64_t word) {
  if (!status.ok()) counters_.requests_refused.fetch_add(1, std::memory_order_relaxed);
  const absl::string_view text = TextOf(status);
  Trailer trailer;
  trailer.request = request;
  trailer.word = word;
  trailer.code = static_cast<int32_t>(ErrorCodeOf(status));
  trailer.text_bytes = static_cast<uint32_t>(text.size());
  Post(std::make_unique<SmallMessage>(*this, trailer.head.id, &trailer, sizeof(trailer), text));
}

// The answer to the first job, and to those behind it that are as small and fit into the message.
void Peer::PostWhole() {
  size_t count = 0;
  uint64_t size = 0;
  for (const std::shared_ptr<ReadJob>& job : jobs_) {
    const uint64_t more = job->bytes + (count == 0 ? 0 : sizeof(Data));
    if (job->bytes > kMaxWholeBytes || size + more > kMaxPayloadBytes) break;
    size += more;
    ++count;
  }
  auto message = std::make_unique<SmallMessage>(*this, MessageId::kData, nullptr, 0, "");
  std::vector<std::byte>& payload = message->owned;
  payload.reserve(size);
  for (size_t i = 0; i < count; ++i) {
    const std::shared_ptr<ReadJob> job = std::move(jobs_.front());
    jobs_.pop_front();
    std::vector<std::byte>& heads = i == 0 ? message->header : payload;
    const size_t at = heads.size();
    heads.resize(at + sizeof(Data));
    for (const std::span<std::byte> range : job->ranges.memory) {
      payload.insert(payload.end(), range.begin(), range.end());
    }
    Data head;
    head.request = job->request;
    head.whole = 1;
    head.bytes = static_cast<uint32_t>(job->bytes);
    OASISKV_PAUSE_POINT("ucx.server.before_trailer");
    head.word = authority_.GrantWord(job->grant);  // after its last byte was read, as in Pump
    std::memcpy(heads.data() + at, &head, sizeof(head));
    counters_.bytes_read.fetch_add(job->bytes, std::memory_order_relaxed);
  }
  Post(std::move(message));
}

void Peer::PostData(const std::shared_ptr<ReadJob>& job) {
  Data head;
  head.request = job->request;
  head.position = job->position;
  auto message = std::make_unique<DataMessage>(*this, job, head);
  const std::vector<std::span<std::byte>>& memory = job->ranges.memory;
  uint64_t bytes = 0;
  // Gathered first; `range` and `offset` then tell where the next message begins.
  size_t range = job->range;
  uint64_t offset = job->offset;
  while (range < memory.size() && bytes < kMaxPayloadBytes) {
    const std::span<const std::byte> piece = memory[range].subspan(
        offset, std::min<uint64_t>(memory[range].size() - offset, kMaxPayloadBytes - bytes));
    auto& gather = message->gather;
    if (!gather.empty() && gather.back().data() + gather.back().size() == piece.data()) {
      gather.back() = {gather.back().data(), gather.back().size() + piece.size()};
    } else if (gather.size() < kMaxGather) {
      gather.push_back(piece);
    } else {
      break;
    }
    bytes += piece.size();
    offset += piece.size();
    if (offset == memory[range].size()) {
      ++range;
      offset = 0;
    }
  }
  if (range < memory.size() && bytes < kMinGatherBytes) {
    message->gather.clear();
    message->owned.reserve(kMaxPayloadBytes);
    range = job->range;
    offset = job->offset;
    bytes = 0;
    while (range < memory.size() && bytes < kMaxPayloadBytes) {
      const std::span<const std::byte> piece = memory[range].subspan(
          offset, std::min<uint64_t>(memory[range].size() - offset, kMaxPayloadBytes - bytes));
      message->owned.insert(message->owned.end(), piece.begin(), piece.end());
      bytes += piece.size();
      offset += piece.size();
      if (offset == memory[range].size()) {
        ++range;
        offset = 0;
      }
    }
  }
  job->range = range;
  job->offset = offset;
  job->position += bytes;
  job->posted = range == memory.size();
  ++job->in_flight;
  counters_.bytes_read.fetch_add(bytes, std::memory_order_relaxed);
  Post(std::move(message));
}

bool Peer::Pump() {
  if (broken()) return false;
  if (!finished_.empty()) {
    const std::shared_ptr<ReadJob> job = std::move(finished_.front());
    finished_.pop_front();
    OASISKV_PAUSE_POINT("ucx.server.before_trailer");
    // Rule 2 of server/lease/README.md: UCX has read the last byte of this request out of the frames
    // before the word is looked at, and a grant's word changes before its frames are let go. So a
    // word that still is the epoch holds for every byte sent, whenever the messages arrive. The pin,
    // held until here, keeps the frames from being reused under a message that a slow socket delays.
    const uint64_t word = authority_.GrantWord(job->grant);
    SendTrailer(job->request, absl::OkStatus(), word);
    return true;
  }
  if (jobs_.empty() || in_flight_ >= kMaxPosted) return false;
  const std::shared_ptr<ReadJob> job = jobs_.front();
  if (job->bytes <= kMaxWholeBytes) {
    PostWhole();
    return true;
  }
  PostData(job);
  // Completion may have come within the call: it looks at `posted`, not at the queue.
  if (job->posted) jobs_.pop_front();
  return true;
}

}  // namespace oasiskv::fabric::ucx
