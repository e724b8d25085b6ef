#include "server/service/admin_service.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "common/wire/convert.h"
#include "oasiskv/v1/admin.grpc.pb.h"
#include "server/service/attach_waiters.h"
#include "server/service/latest_value_stream.h"
#include "server/service/service_state.h"
#include "server/service/translate.h"
#include "server/service/unary_call.h"

namespace oasiskv::server {
namespace {

using CapacityStream = LatestValueStream<v1::GetCapacityResponse>;

constexpr uint32_t kDefaultPage = 1000;
constexpr uint32_t kMaxPage = 10000;
constexpr uint64_t kDefaultIntervalMs = 1000;
constexpr uint64_t kMinIntervalMs = 100;
constexpr size_t kMaxWatchers = 64;

struct Page {
  uint64_t after = 0;
  uint32_t size = 0;
};

absl::StatusOr<Page> ToPage(uint32_t size, const std::string& token) {
  Page out;
  if (size > kMaxPage) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrCat("page_size is ", size, ", at most ", kMaxPage, " is allowed"));
  }
  out.size = size == 0 ? kDefaultPage : size;
  if (!token.empty() && !absl::SimpleAtoi(token, &out.after)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrCat("page_token '", token, "' did not come from an earlier answer"));
  }
  return out;
}

// Adds items while they fit into one message; sets the token when some are left or may be.
template <typename Infos, typename Response, typename Add>
void FillPage(const Infos& infos, uint32_t page_size, Response& response, Add add) {
  size_t bytes = 0;
  for (size_t i = 0; i < infos.size(); ++i) {
    auto& message = add();
    ToMessage(infos[i], message);
    bytes += message.ByteSizeLong() + 8;
    const bool last = i + 1 == infos.size();
    if ((!last && bytes > kMaxMessageBytes / 2) || (last && infos.size() == page_size)) {
      response.set_next_page_token(absl::StrCat(infos[i].id.value()));
      return;
    }
  }
}

void FillCapacity(const ServiceState& state, const KvCore& core, v1::GetCapacityResponse& message) {
  ToMessage(core.Capacity(), message);
  message.set_draining(core.draining());
  message.set_incarnation(core.incarnation());
  message.set_uptime_ms(static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(state.Uptime()).count()));
}

}  // namespace

class AdminService::Impl final : public v1::Admin::CallbackService {
 public:
  Impl(ServiceState& state, AttachWaiters& waiters, std::function<void(bool)> set_draining)
      : state_(state), waiters_(waiters), set_draining_(std::move(set_draining)) {}

  grpc::ServerUnaryReactor* GetCapacity(grpc::CallbackServerContext* context,
                                        const v1::GetCapacityRequest* request,
                                        v1::GetCapacityResponse* response) override {
    return RunUnary(state_, "Admin/GetCapacity", context, request, [&](KvCore& core) {
      FillCapacity(state_, core, *response);
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* ListSequences(grpc::CallbackServerContext* context,
                                          const v1::ListSequencesRequest* request,
                                          v1::ListSequencesResponse* response) override {
    return RunUnary(
        state_, "Admin/ListSequences", context, request, [&](KvCore& core) -> absl::Status {
          OASISKV_ASSIGN_OR_RETURN(const Page page,
                                   ToPage(request->page_size(), request->page_token()));
          FillPage(core.Sequences(SequenceId(page.after), page.size, request->tenant()), page.size,
                   *response, [&]() -> v1::SequenceInfo& { return *response->add_sequences(); });
          return absl::OkStatus();
        });
  }

  grpc::ServerUnaryReactor* ListGrants(grpc::CallbackServerContext* context,
                                       const v1::ListGrantsRequest* request,
                                       v1::ListGrantsResponse* response) override {
    return RunUnary(state_, "Admin/ListGrants", context, request,
                    [&](KvCore& core) -> absl::Status {
                      OASISKV_ASSIGN_OR_RETURN(const Page page,
                                               ToPage(request->page_size(), request->page_token()));
                      FillPage(core.Grants(GrantId(page.after), page.size), page.size, *response,
                               [&]() -> v1::GrantInfo& { return *response->add_grants(); });
                      return absl::OkStatus();
                    });
  }

  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const v1::DrainRequest* request,
                                  v1::DrainResponse* response) override {
    return RunUnary(state_, "Admin/Drain", context, request, [&](KvCore& core) {
      set_draining_(request->enable());
      const CapacityInfo info = core.Capacity();
      response->set_sequences(info.sequences_open + info.sequences_sealed +
                              info.sequences_released);
      response->set_grants(info.grants_reader + info.grants_writer);
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* Evict(grpc::CallbackServerContext* context,
                                  const v1::EvictRequest* request,
                                  v1::EvictResponse* response) override {
    return RunUnary(state_, "Admin/Evict", context, request, [&](KvCore& core) -> absl::Status {
      OASISKV_ASSIGN_OR_RETURN(const uint32_t revoked,
                               core.Abort({request->name(), SequenceId(request->sequence_id())},
                                          wire::FromMessage(request->identity())));
      response->set_grants_revoked(revoked);
      if (revoked > 0) waiters_.Notify();
      return absl::OkStatus();
    });
  }

  grpc::ServerWriteReactor<v1::GetCapacityResponse>* WatchCapacity(
      grpc::CallbackServerContext* context, const v1::WatchCapacityRequest* request) override {
    const auto stream = CapacityStream::Make();
    MutexLock lock(mutex_);
    std::erase_if(watchers_, [](const Watcher& known) { return known.stream.expired(); });
    Watcher watcher;
    watcher.stream = stream;
    const absl::Status status = Begin(*request, watcher);
    // Only the beginning of a stream is counted: its length is not a latency.
    state_.rpc_metrics().Observe("Admin/WatchCapacity", status, Duration(0));
    if (status.ok()) {
      watchers_.push_back(std::move(watcher));
    } else {
      stream->End(ToGrpc(status, *context));
    }
    return stream.get();
  }

  void Tick(MonotonicTime now) {
    MutexLock lock(mutex_);
    if (watchers_.empty()) return;
    auto core = state_.Core();
    if (!core.ok()) return;
    v1::GetCapacityResponse message;
    FillCapacity(state_, **core, message);
    for (Watcher& watcher : watchers_) Offer(message, now, watcher);
  }

  void EndWatches() {
    MutexLock lock(mutex_);
    ended_ = true;
    for (const Watcher& watcher : watchers_) {
      if (const auto stream = watcher.stream.lock()) {
        stream->End({grpc::StatusCode::UNAVAILABLE, "the daemon is stopping"});
      }
    }
  }

 private:
  struct Watcher {
    std::weak_ptr<CapacityStream> stream;
    Duration interval{0};
    MonotonicTime next;
    std::string last;  // what was sent, without the uptime
  };

  absl::Status Begin(const v1::WatchCapacityRequest& request, Watcher& watcher)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (ended_) return MakeError(ErrorCode::kDraining, "the daemon is stopping");
    OASISKV_ASSIGN_OR_RETURN(KvCore * core, state_.Core());
    if (watchers_.size() >= kMaxWatchers) {
      return MakeError(
          ErrorCode::kCapacity,
          absl::StrCat("there are ", kMaxWatchers,
                       " watchers already, which is the limit; end one, or poll GetCapacity"));
    }
    const uint64_t interval_ms =
        request.interval_ms() == 0 ? kDefaultIntervalMs : request.interval_ms();
    if (interval_ms < kMinIntervalMs) {
      return MakeError(ErrorCode::kInvalidArgument,
                       absl::StrCat("interval_ms is ", interval_ms, ", at least ", kMinIntervalMs,
                                    " is allowed"));
    }
    OASISKV_ASSIGN_OR_RETURN(watcher.interval, ToDuration("interval_ms", interval_ms));
    v1::GetCapacityResponse message;
    FillCapacity(state_, *core, message);
    Offer(message, Clock::Real().Now(), watcher);
    return absl::OkStatus();
  }

  void Offer(const v1::GetCapacityResponse& message, MonotonicTime now, Watcher& watcher)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto stream = watcher.stream.lock();
    if (stream == nullptr || now < watcher.next) return;
    v1::GetCapacityResponse timeless = message;
    timeless.clear_uptime_ms();
    std::string bytes = timeless.SerializeAsString();
    if (bytes == watcher.last) return;
    watcher.last = std::move(bytes);
    watcher.next = now + watcher.interval;
    stream->Set(message);
  }

  ServiceState& state_;
  AttachWaiters& waiters_;
  const std::function<void(bool)> set_draining_;

  Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Watcher> watchers_ ABSL_GUARDED_BY(mutex_);
};

AdminService::AdminService(ServiceState& state, AttachWaiters& waiters,
                           std::function<void(bool)> set_draining)
    : impl_(std::make_unique<Impl>(state, waiters, std::move(set_draining))) {}
AdminService::~AdminService() = default;
grpc::Service* AdminService::service() { return impl_.get(); }
void AdminService::Tick(MonotonicTime now) { impl_->Tick(now); }
void AdminService::EndWatches() { impl_->EndWatches(); }

}  // namespace oasiskv::server
