#include "server/service/health_service.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "server/service/latest_value_stream.h"

namespace oasiskv::server {
namespace {

namespace health = grpc::health::v1;
using Watch = LatestValueStream<health::HealthCheckResponse>;

constexpr char kKvMemory[] = "oasiskv.v1.KvMemory";
constexpr char kAdmin[] = "oasiskv.v1.Admin";
constexpr size_t kMaxWatches = 1024;
constexpr size_t kShownBytes = 256;  // of a name in an error's text

enum class Known { kKvMemory, kAdmin, kNone };

Known ToKnown(const std::string& service) {
  if (service.empty() || service == kKvMemory) return Known::kKvMemory;
  return service == kAdmin ? Known::kAdmin : Known::kNone;
}

health::HealthCheckResponse Response(health::HealthCheckResponse::ServingStatus status) {
  health::HealthCheckResponse out;
  out.set_status(status);
  return out;
}

}  // namespace

class HealthService::Impl final : public health::Health::CallbackService {
 public:
  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const health::HealthCheckRequest* request,
                                  health::HealthCheckResponse* response) override {
    const auto status = StatusOf(request->service());
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    if (status == health::HealthCheckResponse::SERVICE_UNKNOWN) {
      reactor->Finish({grpc::StatusCode::NOT_FOUND,
                       absl::StrCat("'", request->service().substr(0, kShownBytes),
                                    "' is not a service of this daemon; there are '', ", kKvMemory,
                                    " and ", kAdmin)});
    } else {
      response->set_status(status);
      reactor->Finish(grpc::Status::OK);
    }
    return reactor;
  }

  grpc::ServerWriteReactor<health::HealthCheckResponse>* Watch(
      grpc::CallbackServerContext*, const health::HealthCheckRequest* request) override {
    const auto watch = server::Watch::Make();
    MutexLock lock(mutex_);
    std::erase_if(watches_, [](const Watcher& known) { return known.stream.expired(); });
    if (watches_.size() >= kMaxWatches) {
      watch->End({grpc::StatusCode::RESOURCE_EXHAUSTED,
                  absl::StrCat(kMaxWatches,
                               " health watches is the limit; end one, or poll "
                               "Check")});
      return watch.get();
    }
    Watcher& watcher = watches_.emplace_back();
    watcher.service = ToKnown(request->service());
    watcher.stream = watch;
    Send(watcher);
    if (ended_) watch->End(Stopping());
    return watch.get();
  }

  void SetServing(bool serving) {
    MutexLock lock(mutex_);
    serving_ = serving;
    was_serving_ |= serving;
    for (Watcher& watcher : watches_) Send(watcher);
  }

  void EndWatches() {
    MutexLock lock(mutex_);
    ended_ = true;
    for (const Watcher& watcher : watches_) {
      if (const auto watch = watcher.stream.lock()) watch->End(Stopping());
    }
  }

 private:
  struct Watcher {
    Known service = Known::kNone;
    std::weak_ptr<server::Watch> stream;
    health::HealthCheckResponse::ServingStatus sent = health::HealthCheckResponse::UNKNOWN;
  };

  // Sends the status if it differs from what was sent last.
  void Send(Watcher& watcher) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto status = StatusLocked(watcher.service);
    const auto watch = watcher.stream.lock();
    if (watch == nullptr || status == watcher.sent) return;
    watcher.sent = status;
    watch->Set(Response(status));
  }

  static grpc::Status Stopping() {
    return {grpc::StatusCode::UNAVAILABLE, "the daemon is stopping"};
  }

  health::HealthCheckResponse::ServingStatus StatusOf(const std::string& service) {
    MutexLock lock(mutex_);
    return StatusLocked(ToKnown(service));
  }
  health::HealthCheckResponse::ServingStatus StatusLocked(Known service)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (service == Known::kNone) return health::HealthCheckResponse::SERVICE_UNKNOWN;
    return (service == Known::kKvMemory ? serving_ : was_serving_)
               ? health::HealthCheckResponse::SERVING
               : health::HealthCheckResponse::NOT_SERVING;
  }

  Mutex mutex_;
  bool serving_ ABSL_GUARDED_BY(mutex_) = false;
  bool was_serving_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Watcher> watches_ ABSL_GUARDED_BY(mutex_);
};

HealthService::HealthService() : impl_(std::make_unique<Impl>()) {}
HealthService::~HealthService() = default;
grpc::Service* HealthService::service() { return impl_.get(); }
void HealthService::SetServing(bool serving) { impl_->SetServing(serving); }
void HealthService::EndWatches() { impl_->EndWatches(); }

}  // namespace oasiskv::server
