// The client's life: connecting, taking batches, the progress thread's loop, losing the daemon.
#include "common/fabric/ucx/client.h"

#include <ucp/api/ucp.h>

#include <algorithm>
#include <utility>

#include "common/address.h"
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

MonotonicTime Now() { return std::chrono::steady_clock::now(); }

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
      Worker::Create(
          *out,
          socket_address.storage.ss_family == AF_INET6 ? Worker::Family::kIpv6
                                                       : Worker::Family::kIpv4,
          options.one_sided ? Worker::RemoteMemory::kIfDevices : Worker::RemoteMemory::kNo));
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
  if (one_sided_ != nullptr) one_sided_->ReleaseKeys();
  worker_.reset();  // while what its messages count in, and what it may write to, is still there
}

// What was sent before has been taken: greeted at last, one way or the other.
void UcxConnection::Greeted() {
  MutexLock lock(mutex_);
  greeted_ = true;
  greeted_changed_.NotifyAll();
}

// Not within UCX's calls that bring the messages. Both sides have asked UCX which lanes it chose;
// the keys are given only when both can use them.
bool UcxConnection::ContinueGreeting() {
  if (failed_) return false;
  if (welcome_.has_value()) {
    lanes_ = worker_->LanesOf(endpoint_);
    const bool offered = welcome_->offers_keys != 0;
    welcome_.reset();
    if (!offered) {
      Greeted();
      return true;
    }
    Join join;
    joined_ = worker_->remote_memory() && lanes_.one_sided;
    join.takes_keys = joined_ ? 1 : 0;
    worker_->Send(endpoint_,
                  std::make_unique<PlainMessage>(*this, join.head.id, &join, sizeof(join)),
                  Worker::Reply::kYes);
    if (!joined_) Greeted();
    return true;
  }
  if (!keys_.has_value()) return false;
  const absl::Status status = TakeKeys();
  keys_.reset();
  if (status.ok()) {
    Greeted();
  } else {
    Lose(status);
  }
  return true;
}

absl::Status UcxConnection::TakeKeys() {
  const auto& [keys, payload] = *keys_;
  OASISKV_ASSIGN_OR_RETURN(
      one_sided_, OneSided::Create(*worker_, endpoint_, keys, payload, options_.window_bytes,
                                   ledger_, [this](const absl::Status& why) { Lose(why); }));
  connection_ = ConnectionId(keys.connection);
  return absl::OkStatus();
}

void UcxConnection::FenceWriter(GrantId grant) {
  // Returns when no write of it is in flight: one-sided ones stay inside until they were flushed.
  const bool first = ledger_->gate().Close(grant);
  if (one_sided_ == nullptr || !first) return;
  {
    MutexLock lock(mutex_);
    // What was on its way when the connection broke may still arrive: only the end of the
    // connection, which the daemon sees, says that it does not.
    if (!lost_.ok()) return;
    fences_.push_back(grant);
  }
  worker_->Wake();
}

bool UcxConnection::SendFences() {
  std::vector<GrantId> grants;
  {
    MutexLock lock(mutex_);
    if (fences_.empty()) return false;
    grants.swap(fences_);
  }
  if (failed_) return false;
  for (const GrantId grant : grants) {
    Fence fence;
    fence.grant = grant.value();
    worker_->Send(endpoint_,
                  std::make_unique<PlainMessage>(*this, fence.head.id, &fence, sizeof(fence)),
                  Worker::Reply::kYes);
  }
  return true;
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
    status = batch->Prepare(
        pieces, one_sided_ != nullptr ? FrameSpan::kAcrossFrames : FrameSpan::kWithinFrame);
  }
  if (status.ok() && one_sided_ != nullptr) status = one_sided_->CheckPlaces(*batch);
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
    bool active = ContinueGreeting();
    active |= TakeSubmitted();
    active |= SendFences();
    active |= Issue();
    for (int i = 0; i < 16 && worker_->Progress(); ++i) active = true;
    if (failed_ && endpoint_ != nullptr) CloseEndpoint();
    const MonotonicTime now = Now();
    if (active) active_at = now;
    const bool sleepy = !active && (idle() || now - active_at > kSpin);
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
  return now + (idle() ? kIdleLookInterval : kLookInterval);
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
  if (one_sided_ != nullptr) one_sided_->Drop();
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
    const bool done = sends_in_flight_ == 0 && (one_sided_ == nullptr || one_sided_->idle());
    if ((closed && done) || Now() >= until) break;
    worker_->Progress();
  }
}

}  // namespace oasiskv::fabric::ucx

namespace oasiskv::fabric {

absl::StatusOr<std::unique_ptr<Connection>> ConnectUcx(const UcxConnectOptions& options) {
  return ucx::UcxConnection::Connect(options);
}

}  // namespace oasiskv::fabric
