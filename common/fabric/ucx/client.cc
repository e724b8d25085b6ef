#include "common/fabric/ucx/client.h"

#include <ucp/api/ucp.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/address.h"
#include "common/pause_point.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric::ucx {
namespace {

// How long the thread looks for answers before it sleeps.
constexpr Duration kSpin = std::chrono::microseconds(50);
// How often deadlines are looked at while there is other work to do.
constexpr Duration kSweepInterval = std::chrono::milliseconds(1);
// How often a sleeping thread looks around all the same.
constexpr Duration kLookInterval = std::chrono::milliseconds(10);
constexpr Duration kIdleLookInterval = std::chrono::milliseconds(200);
constexpr Duration kStopTimeout = std::chrono::seconds(1);

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

MonotonicTime Now() { return std::chrono::steady_clock::now(); }

// The status in a message that carries a code and a text; `what` names it when they do not fit
// together.
template <typename Head>
absl::Status StatusOf(const Head& head, std::span<const std::byte> payload) {
  if (head.code == 0) return absl::OkStatus();
  return MakeError(static_cast<ErrorCode>(head.code),
                   {reinterpret_cast<const char*>(payload.data()),
                    std::min<size_t>(payload.size(), kMaxTextBytes)});
}

// Thread contract: as Transfer.
class UcxTransfer final : public Transfer {
 public:
  explicit UcxTransfer(std::shared_ptr<Batch> batch) : batch_(std::move(batch)) {}
  ~UcxTransfer() override { Cancel(); }

  bool Done() override { return batch_->ended(); }
  absl::Status Wait() override { return batch_->WaitEnded(); }
  void Cancel() override {
    if (!batch_->ended()) batch_->End(MakeError(ErrorCode::kCancelled, "the batch was cancelled"));
  }
  TransferTimes Times() const override { return batch_->Times(); }

 private:
  const std::shared_ptr<Batch> batch_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Connection>> UcxConnection::Connect(
    const UcxConnectOptions& options) {
  OASISKV_ASSIGN_OR_RETURN(const Address address, ParseAddress(options.address, 0));
  if (address.port == 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrCat("the ucx data address '", options.address, "' has no port"));
  }
  OASISKV_ASSIGN_OR_RETURN(const SocketAddress socket_address, UcxAddress(address));
  std::unique_ptr<UcxConnection> out(new UcxConnection(options));
  OASISKV_ASSIGN_OR_RETURN(
      out->worker_,
      Worker::Create(*out, socket_address.storage.ss_family == AF_INET6 ? Worker::Family::kIpv6
                                                                        : Worker::Family::kIpv4));
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr.addr = socket_address.get();
  params.sockaddr.addrlen = socket_address.length;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = [](void* arg, ucp_ep_h, ucs_status_t why) {
    static_cast<UcxConnection*>(arg)->OnError(ucs_status_string(why));
  };
  params.err_handler.arg = out.get();
  const ucs_status_t status = ucp_ep_create(out->worker_->get(), &params, &out->endpoint_);
  if (status != UCS_OK) {
    out->endpoint_ = nullptr;
    return MakeError(ErrorCode::kPeerLost, absl::StrCat("cannot connect to ", options.address, ": ",
                                                        ucs_status_string(status)));
  }
  Hello hello;
  hello.incarnation = options.incarnation;
  out->worker_->Send(out->endpoint_,
                     std::make_unique<PlainMessage>(*out, hello.head.id, &hello, sizeof(hello)),
                     Worker::Reply::kYes);
  out->thread_ = std::thread([raw = out.get()] { raw->Run(); });
  OASISKV_RETURN_IF_ERROR(out->Handshake());
  return out;
}

absl::Status UcxConnection::Handshake() {
  const MonotonicTime until = Now() + options_.connect_timeout;
  MutexLock lock(mutex_);
  while (!greeted_ && lost_.ok()) {
    if (!greeted_changed_.WaitUntil(mutex_, until) && Now() >= until) {
      return MakeError(
          ErrorCode::kPeerLost,
          absl::StrCat(
              "nothing that speaks the ucx data protocol answers at ", options_.address, " within ",
              std::chrono::duration_cast<std::chrono::milliseconds>(options_.connect_timeout)
                  .count(),
              " ms"));
    }
  }
  return lost_;
}

UcxConnection::~UcxConnection() {
  stop_.store(true);
  if (thread_.joinable()) {
    worker_->Wake();
    thread_.join();
  } else if (worker_ != nullptr && endpoint_ != nullptr) {
    CloseEndpoint();
  }
  worker_.reset();  // while what its messages count in, and what it may write to, is still there
}

template <typename Piece>
std::unique_ptr<Transfer> UcxConnection::Start(Access access,
                                               std::shared_ptr<const GrantView> grant,
                                               std::span<const Piece> pieces,
                                               MonotonicTime deadline) {
  auto batch = std::make_shared<Batch>(access, std::move(grant), deadline, ledger_);
  ledger_->Count(access == Access::kRead ? &ConnectionStats::reads : &ConnectionStats::writes);
  ledger_->Count(&ConnectionStats::pieces, pieces.size());
  absl::Status status;
  if (access == Access::kWrite && batch->grant->access != Access::kWrite) {
    status = MakeError(ErrorCode::kPermissionDenied, "a reader's grant cannot be written with");
  }
  if (status.ok()) {
    status = batch->Prepare(pieces);
  }
  if (status.ok() && access == Access::kWrite && !batch->EnterGate()) {
    status = MakeError(ErrorCode::kStale, "the writer was fenced: its grant was given up or lost");
  }
  if (status.ok() && !pieces.empty()) {
    status = Submit(batch);
    if (status.ok()) return std::make_unique<UcxTransfer>(std::move(batch));
  }
  batch->End(status);
  return std::make_unique<UcxTransfer>(std::move(batch));
}

absl::Status UcxConnection::Submit(const std::shared_ptr<Batch>& batch) {
  {
    MutexLock lock(mutex_);
    if (!lost_.ok()) return lost_;
    submitted_.push_back(batch);
  }
  worker_->Wake();
  return absl::OkStatus();
}

void UcxConnection::Run() {
  MonotonicTime active_at = Now();
  MonotonicTime next_sweep = active_at;
  while (!stop_.load(std::memory_order_relaxed)) {
    bool active = TakeSubmitted();
    active |= Issue();
    for (int i = 0; i < 16 && worker_->Progress(); ++i) active = true;
    if (failed_ && endpoint_ != nullptr) CloseEndpoint();
    const MonotonicTime now = Now();
    if (active) active_at = now;
    const bool sleepy = !active && (requests_.empty() || now - active_at > kSpin);
    if (now >= next_deadline_ || now >= next_sweep || sleepy) {
      Sweep(now);
      next_sweep = now + kSweepInterval;
    }
    if (sleepy) worker_->Sleep(std::min(next_deadline_, WakeAt(now)));
  }
  Lose(MakeError(ErrorCode::kCancelled, "the connection was closed"));
  if (endpoint_ != nullptr) CloseEndpoint();
}

// Over RDMA lanes UCX does not wake a thread for every way in which operations, and the daemon,
// end.
MonotonicTime UcxConnection::WakeAt(MonotonicTime now) const {
  if (worker_->transports() == "tcp") return MonotonicTime::max();
  return now + (requests_.empty() ? kIdleLookInterval : kLookInterval);
}

bool UcxConnection::TakeSubmitted() {
  {
    MutexLock lock(mutex_);
    if (submitted_.empty()) return false;
    taken_.swap(submitted_);
  }
  for (std::shared_ptr<Batch>& batch : taken_) {
    next_deadline_ = std::min(next_deadline_, batch->deadline);
    live_.push_back(batch);
    asking_.push_back(std::move(batch));
  }
  taken_.clear();
  return true;
}

void UcxConnection::OnError(absl::string_view why) {
  bool greeted = false;
  {
    MutexLock lock(mutex_);
    greeted = greeted_;
  }
  Lose(MakeError(ErrorCode::kPeerLost,
                 greeted ? absl::StrCat("the daemon at ", options_.address, " is gone: ", why)
                         : absl::StrCat("cannot connect to ", options_.address, ": ", why)));
}

void UcxConnection::Lose(const absl::Status& why) {
  std::vector<std::shared_ptr<Batch>> submitted;
  {
    MutexLock lock(mutex_);
    if (lost_.ok()) lost_ = why;
    submitted.swap(submitted_);
    greeted_changed_.NotifyAll();
  }
  failed_ = true;
  for (const auto& batch : submitted) batch->End(why);
  for (const auto& batch : live_) batch->End(why);
  live_.clear();
  asking_.clear();
  requests_.clear();
  bytes_in_flight_ = 0;
  next_deadline_ = MonotonicTime::max();
}

void UcxConnection::Sweep(MonotonicTime now) {
  next_deadline_ = MonotonicTime::max();
  std::erase_if(live_, [&](const std::shared_ptr<Batch>& batch) {
    if (batch->ended()) return true;
    if (batch->deadline > now) {
      next_deadline_ = std::min(next_deadline_, batch->deadline);
      return false;
    }
    batch->End(MakeError(ErrorCode::kDeadlineExceeded, "the batch's deadline passed"));
    return true;
  });
  // A window that a stopped daemon keeps full gives them no turn, in which they would be dropped.
  // After the deadlines: what ends by one just now would otherwise stay until the next sweep, which
  // may be long in coming.
  std::erase_if(asking_, [](const std::shared_ptr<Batch>& batch) { return batch->ended(); });
}

// Bounded: what UCX does not give back in time it gives back when the worker goes.
void UcxConnection::CloseEndpoint() {
  void* request = worker_->StartClose(std::exchange(endpoint_, nullptr));
  const MonotonicTime until = Now() + kStopTimeout;
  bool closed = false;
  while (true) {
    closed = closed || worker_->Closed(request);
    if ((closed && sends_in_flight_ == 0) || Now() >= until) break;
    worker_->Progress();
  }
}

// --- asking: batches are cut into requests, which share the window and take turns ---

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
    if (IssueOne(batch)) {
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
  return issued;
}

bool UcxConnection::Full() const {
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
    AddRead(request, id, ranges);
  } else if (!SendWrite(request, id, ranges)) {
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
void UcxConnection::AddRead(const OpenRequest& request, uint64_t id,
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
  requests_.emplace(id, request);
  if (reads_->owned.size() >= kMinReadsBytes) SendReads();
}

void UcxConnection::SendReads() {
  if (reads_ != nullptr) worker_->Send(endpoint_, std::move(reads_), Worker::Reply::kYes);
}

bool UcxConnection::SendWrite(const OpenRequest& request, uint64_t id,
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
  requests_.emplace(id, request);
  worker_->Send(endpoint_, std::move(message), Worker::Reply::kYes);
  return true;
}

// --- what the daemon sends: bytes go to their batch while it lives, and the grant word decides ---

void UcxConnection::OnArrival(const Arrival& arrival) {
  if (failed_ || !arrival.whole) return;
  switch (static_cast<MessageId>(arrival.id)) {
    case MessageId::kData:
      return OnData(arrival);
    case MessageId::kTrailer:
      return OnTrailer(arrival);
    case MessageId::kHelloReply:
      return OnHelloReply(arrival);
    case MessageId::kPing:
      return;
    default:
      return Lose(MakeError(ErrorCode::kPeerLost,
                            absl::StrCat("the daemon at ", options_.address,
                                         " sent a message of the unknown kind ", arrival.id)));
  }
}

void UcxConnection::OnHelloReply(const Arrival& arrival) {
  HelloReply reply;
  if (!ParseHeader(arrival.header.data(), arrival.header.size(), reply)) {
    return Lose(
        MakeError(ErrorCode::kUnsupported,
                  absl::StrCat("what answers at ", options_.address, " does not speak version ",
                               kVersion, " of the ucx data protocol")));
  }
  if (absl::Status status = StatusOf(reply, arrival.payload); !status.ok()) return Lose(status);
  lane_ = worker_->LaneOf(endpoint_);
  MutexLock lock(mutex_);
  greeted_ = true;
  greeted_changed_.NotifyAll();
}

void UcxConnection::OnData(const Arrival& arrival) {
  std::span<const std::byte> header = arrival.header;
  std::span<const std::byte> rest = arrival.payload;
  while (!failed_) {
    Data data;
    const bool good = ParseHeader(header.data(), header.size(), data);
    const uint64_t bytes = data.whole != 0 ? data.bytes : rest.size();
    if (!good || bytes > rest.size()) {
      return Lose(MakeError(ErrorCode::kPeerLost, absl::StrCat("the daemon at ", options_.address,
                                                               " sent malformed data")));
    }
    TakeData(data, rest.first(bytes));
    rest = rest.subspan(bytes);
    if (rest.empty()) return;
    header = rest.first(std::min(rest.size(), sizeof(Data)));
    rest = rest.subspan(header.size());
  }
}

void UcxConnection::TakeData(const Data& data, std::span<const std::byte> payload) {
  auto it = requests_.find(data.request);
  if (it == requests_.end()) return;  // its batch was refused meanwhile
  OpenRequest& request = it->second;
  const uint64_t bytes = payload.size();
  if (request.batch->access != Access::kRead || data.position > request.bytes ||
      bytes > request.bytes - data.position || bytes > request.bytes - request.arrived) {
    return Lose(MakeError(
        ErrorCode::kPeerLost,
        absl::StrCat("the daemon at ", options_.address, " sent more data than it was asked for")));
  }
  if (bytes == 0) return;
  OASISKV_PAUSE_POINT("ucx.client.before_copy");
  if (request.batch->CopyIn(request.from, data.position, payload)) {
    ledger_->Count(&ConnectionStats::bytes_read, bytes);
  }
  request.arrived += bytes;
  bytes_in_flight_ -= bytes;
  if (data.whole != 0) {
    request.answered = true;
    request.word = data.word;
  }
  if (request.answered && request.arrived == request.bytes) Finish(it);
}

void UcxConnection::OnTrailer(const Arrival& arrival) {
  Trailer trailer;
  if (!ParseHeader(arrival.header.data(), arrival.header.size(), trailer)) {
    return Lose(MakeError(ErrorCode::kPeerLost, absl::StrCat("the daemon at ", options_.address,
                                                             " sent a malformed trailer")));
  }
  auto it = requests_.find(trailer.request);
  if (it == requests_.end()) return;
  OpenRequest& request = it->second;
  const std::shared_ptr<Batch>& batch = request.batch;
  if (absl::Status status = StatusOf(trailer, arrival.payload); !status.ok()) {
    bytes_in_flight_ -= request.bytes - request.arrived;
    batch->End(status);
    requests_.erase(it);
    return;
  }
  if (request.answered) return;
  request.answered = true;
  request.word = trailer.word;
  if (batch->access == Access::kWrite) {
    if (!batch->ended()) ledger_->Count(&ConnectionStats::bytes_written, request.bytes);
    bytes_in_flight_ -= request.bytes;
    request.arrived = request.bytes;
  }
  // A trailer may overtake its data; then the last of the data finishes the request.
  if (request.arrived == request.bytes) Finish(it);
}

// All bytes of the request are there and its trailer's word was sampled after they were read.
void UcxConnection::Finish(Requests::iterator it) {
  const std::shared_ptr<Batch> batch = it->second.batch;
  ledger_->Count(&ConnectionStats::grant_checks);
  const absl::Status status = CheckGrantWord(it->second.word, batch->grant->epoch);
  requests_.erase(it);
  --batch->open_requests;
  if (!status.ok()) {
    batch->End(status);
  } else if (batch->all_asked() && batch->open_requests == 0) {
    batch->End(absl::OkStatus());
  }
}

}  // namespace oasiskv::fabric::ucx

namespace oasiskv::fabric {

absl::StatusOr<std::unique_ptr<Connection>> ConnectUcx(const UcxConnectOptions& options) {
  return ucx::UcxConnection::Connect(options);
}

}  // namespace oasiskv::fabric
