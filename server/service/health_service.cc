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
      reactor->Finish(
          {grpc::StatusCode::NOT_FOUND,
           absl::StrCat("'", request->service(), "' is no service of this daemon; there are '', ",
                        kKvMemory, " and ", kAdmin)});
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
    Watcher& watcher = watches_.emplace_back();
    watcher.service = request->service();
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
    std::string service;
    std::weak_ptr<server::Watch> stream;
    health::HealthCheckResponse::ServingStatus sent = health::HealthCheckResponse::UNKNOWN;
  };

  // Sends the status where it differs from what was sent.
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
    return StatusLocked(service);
  }
  health::HealthCheckResponse::ServingStatus StatusLocked(const std::string& service)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const bool whole = service.empty() || service == kKvMemory;
    if (!whole && service != kAdmin) return health::HealthCheckResponse::SERVICE_UNKNOWN;
    return (whole ? serving_ : was_serving_) ? health::HealthCheckResponse::SERVING
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
