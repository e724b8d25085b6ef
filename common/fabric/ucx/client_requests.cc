// How batches are asked for: cut into requests, which share the window and take turns.
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "common/fabric/ucx/client.h"

namespace oasiskv::fabric::ucx {
namespace {

// What one read asks for at most: large, so that headers, trailers and checks cost little; small
// against the window, so that several batches share it and the next request is at the daemon before
// the last is answered.
constexpr uint64_t kReadRequestBytes = uint64_t{512} << 10;
// A window with less room than this waits for more, lest requests be cut ever smaller.
constexpr uint64_t kMinRequestBytes = uint64_t{64} << 10;
// A message of so many bytes of read requests takes no more of them: the daemon should begin to
// answer.
constexpr size_t kMinReadsBytes = size_t{2} << 10;
// Half of what the daemon tolerates.
constexpr size_t kMaxRequests = kMaxOpenRequests / 2;
// Write messages that UCX holds a copy of at a time.
constexpr size_t kMaxWritesPosted = 8;

}  // namespace

class UcxConnection::WriteMessage : public PlainMessage {
 public:
  WriteMessage(UcxConnection& connection, const WriteRequest& head)
      : PlainMessage(connection, MessageId::kWrite, &head, sizeof(head)) {
    ++connection_.writes_posted_;
  }
  void OnSent(bool ok) override {
    --connection_.writes_posted_;
    PlainMessage::OnSent(ok);
  }
};

// Hands requests to UCX, one a batch in turn, while the window has room.
bool UcxConnection::Issue() {
  bool issued = false;
  // A batch that cannot go on (writes wait for UCX to take the copies) must not hold up the others.
  size_t held_up = 0;
  while (held_up < asking_.size() && !Full()) {
    std::shared_ptr<Batch> batch = std::move(asking_.front());
    asking_.pop_front();
    if (batch->ended()) continue;
    if (one_sided_ != nullptr ? one_sided_->Issue(batch) : IssueOne(batch)) {
      issued = true;
      held_up = 0;
    } else {
      ++held_up;
    }
    if (batch->ended()) continue;
    if (batch->all_asked()) {
      batch->MarkPosted();
    } else {
      asking_.push_back(std::move(batch));
    }
  }
  SendReads();
  if (one_sided_ != nullptr && one_sided_->Advance()) issued = true;
  return issued;
}

// Of messages; one-sided operations have bounds of their own.
bool UcxConnection::Full() const {
  if (one_sided_ != nullptr) return false;
  const bool full = bytes_in_flight_ + kMinRequestBytes > options_.window_bytes;
  return (full && bytes_in_flight_ > 0) || requests_.size() >= kMaxRequests;
}

bool UcxConnection::IssueOne(const std::shared_ptr<Batch>& batch) {
  const bool write = batch->access == Access::kWrite;
  if (write && writes_posted_ >= kMaxWritesPosted) return false;
  const uint64_t room = options_.window_bytes > bytes_in_flight_
                            ? options_.window_bytes - bytes_in_flight_
                            : uint64_t{0};
  const uint64_t most =
      std::min(std::max(room, kMinRequestBytes), write ? kMaxPayloadBytes : kReadRequestBytes);
  OpenRequest request;
  request.batch = batch;
  request.from = batch->next;
  const std::vector<RemoteRange> ranges =
      NextRanges(*batch, most, write ? kMaxWriteRanges : kMaxReadRanges, request.bytes);
  const uint64_t bytes = request.bytes;
  const uint64_t id = next_request_++;
  if (!write) {
    AddRead(std::move(request), id, ranges);
  } else if (!SendWrite(std::move(request), id, ranges)) {
    return true;  // the batch ended meanwhile
  }
  bytes_in_flight_ += bytes;
  ++batch->open_requests;
  ledger_->Count(&ConnectionStats::requests, ranges.size());
  return true;
}

// The next ranges of a batch, and moves it past them. Ranges that touch in the frame are one,
// wherever their bytes lie on this side.
std::vector<RemoteRange> UcxConnection::NextRanges(Batch& batch, uint64_t max_bytes,
                                                   size_t max_ranges, uint64_t& bytes) const {
  std::vector<RemoteRange> ranges;
  bytes = 0;
  BatchCursor& next = batch.next;
  while (!batch.all_asked() && bytes < max_bytes) {
    const Stretch& stretch = batch.stretches()[next.stretch];
    const auto part =
        static_cast<uint32_t>(std::min(stretch.bytes - next.offset, max_bytes - bytes));
    const auto offset = static_cast<uint32_t>(stretch.offset + next.offset);
    if (!ranges.empty() && ranges.back().block == stretch.block &&
        ranges.back().offset + ranges.back().length == offset) {
      ranges.back().length += part;
    } else if (ranges.size() == max_ranges) {
      break;
    } else {
      ranges.push_back({stretch.block, offset, part});
    }
    bytes += part;
    next.offset += part;
    if (next.offset == stretch.bytes) next = {next.stretch + 1, 0};
  }
  return ranges;
}

// Small batches that wait at the same time share a message: each costs the daemon one otherwise.
void UcxConnection::AddRead(OpenRequest request, uint64_t id,
                            const std::vector<RemoteRange>& ranges) {
  ReadRequest head;
  head.request = id;
  head.grant = request.batch->grant->id.value();
  head.epoch = request.batch->grant->epoch.value();
  head.ranges = static_cast<uint32_t>(ranges.size());
  if (reads_ == nullptr) {
    reads_ = std::make_unique<PlainMessage>(*this, head.head.id, &head, sizeof(head));
  } else {
    const auto* first = reinterpret_cast<const std::byte*>(&head);
    reads_->owned.insert(reads_->owned.end(), first, first + sizeof(head));
  }
  const auto* first = reinterpret_cast<const std::byte*>(ranges.data());
  const size_t range_bytes = ranges.size() * sizeof(RemoteRange);
  reads_->owned.insert(reads_->owned.end(), first, first + range_bytes);
  ledger_->Count(&ConnectionStats::request_bytes, sizeof(head) + range_bytes);
  requests_.emplace(id, std::move(request));
  if (reads_->owned.size() >= kMinReadsBytes) SendReads();
}

void UcxConnection::SendReads() {
  if (reads_ != nullptr) worker_->Send(endpoint_, std::move(reads_), Worker::Reply::kYes);
}

bool UcxConnection::SendWrite(OpenRequest request, uint64_t id,
                              const std::vector<RemoteRange>& ranges) {
  WriteRequest head;
  head.request = id;
  head.grant = request.batch->grant->id.value();
  head.epoch = request.batch->grant->epoch.value();
  head.ranges = static_cast<uint32_t>(ranges.size());
  auto message = std::make_unique<WriteMessage>(*this, head);
  message->header.resize(sizeof(head) + ranges.size() * sizeof(RemoteRange));
  std::memcpy(message->header.data() + sizeof(head), ranges.data(),
              ranges.size() * sizeof(RemoteRange));
  // A copy, because UCX may look at it long after the batch ended and its buffers are somebody
  // else's.
  message->owned.reserve(kMaxPayloadBytes);
  if (!request.batch->CopyOut(request.from, request.bytes, message->owned)) {
    message->OnSent(false);
    return false;
  }
  ledger_->Count(&ConnectionStats::request_bytes, message->header.size());
  requests_.emplace(id, std::move(request));
  worker_->Send(endpoint_, std::move(message), Worker::Reply::kYes);
  return true;
}

}  // namespace oasiskv::fabric::ucx
