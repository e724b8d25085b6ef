// What the client does with what the daemon sends: bytes go to their batch while it lives, and the
// grant word decides.
#include <algorithm>
#include <memory>
#include <utility>

#include "common/fabric/ucx/client.h"
#include "common/pause_point.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric::ucx {
namespace {

// The status in a message that carries a code and a text; `what` names it when they do not fit
// together.
template <typename Head>
absl::Status StatusOf(const Head& head, std::span<const std::byte> payload) {
  if (head.code == 0) return absl::OkStatus();
  return MakeError(static_cast<ErrorCode>(head.code),
                   {reinterpret_cast<const char*>(payload.data()),
                    std::min<size_t>(payload.size(), kMaxTextBytes)});
}

}  // namespace

void UcxConnection::OnArrival(const Arrival& arrival) {
  if (failed_ || !arrival.whole) return;
  switch (static_cast<MessageId>(arrival.id)) {
    case MessageId::kData:
      return OnData(arrival);
    case MessageId::kTrailer:
      return OnTrailer(arrival);
    case MessageId::kHelloReply:
      return OnHelloReply(arrival);
    case MessageId::kKeys:
      return OnKeys(arrival);
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
  welcome_ = reply;
}

void UcxConnection::OnKeys(const Arrival& arrival) {
  Keys keys;
  if (!std::exchange(joined_, false) ||
      !ParseHeader(arrival.header.data(), arrival.header.size(), keys)) {
    return Lose(MakeError(ErrorCode::kPeerLost, absl::StrCat("the daemon at ", options_.address,
                                                             " sent keys out of turn")));
  }
  keys_.emplace(keys, std::vector<std::byte>(arrival.payload.begin(), arrival.payload.end()));
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
