#include "server/daemon/daemon.h"

#include <prometheus/collectable.h>
#include <prometheus/registry.h>

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/address.h"
#include "common/fabric/registry.h"
#include "common/log.h"
#include "common/pause_point.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"
#include "server/daemon/metrics.h"
#include "server/daemon/metrics_server.h"
#include "server/daemon/ticker.h"
#include "server/service/control_server.h"

namespace oasiskv::server {
namespace {

constexpr Duration kTickInterval = std::chrono::milliseconds(100);
// The scrubber looks as often, and works as long at a time as a stop of the daemon may wait for it.
constexpr Duration kScrubInterval = std::chrono::milliseconds(10);
constexpr Duration kScrubBudget = std::chrono::milliseconds(200);
constexpr Duration kDrainPoll = std::chrono::milliseconds(20);

}  // namespace

struct Daemon::Impl {
  explicit Impl(Options daemon_options)
      : options(std::move(daemon_options)), registry(std::make_shared<prometheus::Registry>()) {}

  ~Impl() {
    // End calls before the objects they use, and peers before the memory they reach.
    scrubber.reset();
    ticker.reset();
    control.reset();
    metrics.reset();
    core_metrics.reset();
    endpoints.clear();
    core.reset();
  }

  std::vector<const fabric::Fabric*> Served() const {
    std::vector<const fabric::Fabric*> served;
    for (const fabric::Fabric* entry : fabric::Fabrics()) {
      const auto& names = options.fabrics;
      if (std::find(names.begin(), names.end(), entry->name) != names.end()) {
        served.push_back(entry);
      }
    }
    return served;
  }

  absl::Status CheckDataPlane() const {
    for (const fabric::Fabric* entry : Served()) {
      OASISKV_RETURN_IF_ERROR(entry->check_serve(options.fabric));
    }
    return absl::OkStatus();
  }

  absl::Status ServeDataPlane() {
    for (const fabric::Fabric* entry : Served()) {
      OASISKV_ASSIGN_OR_RETURN(auto endpoint, entry->serve(options.fabric, core->Export(), *core));
      bound.endpoints.push_back(
          {std::string(entry->name), endpoint->address(), endpoint->Describe()});
      endpoints.push_back(std::move(endpoint));
    }
    return absl::OkStatus();
  }

  // A writer's key cannot be taken away, so a revoked writer that does not fence loses its
  // connection, where there is one that can be ended: a mapping (shm) cannot be taken away at all.
  void EndUnfencedWriters() {
    for (const ConnectionId connection : core->UnfencedWriters(options.fence_timeout)) {
      for (const auto& endpoint : endpoints) {
        if (!endpoint->Close(connection)) continue;
        if (unfenced_gate.Pass()) {
          LogWarning("daemon",
                     absl::StrCat("a writer over ", std::string(endpoint->fabric()),
                                  " did not fence its revoked grant within "
                                  "--fence_timeout; its connection is ended (",
                                  unfenced_gate.suppressed(), " more such lines held back)"));
        }
        break;
      }
    }
  }

  Options options;  // constant once the control port is known
  BoundAddresses bound;
  const std::shared_ptr<prometheus::Registry> registry;
  std::unique_ptr<MetricsServer> metrics;
  std::unique_ptr<ControlServer> control;
  std::unique_ptr<KvCore> core;
  std::vector<std::unique_ptr<fabric::Endpoint>> endpoints;
  LogGate unfenced_gate;
  std::shared_ptr<prometheus::Collectable> core_metrics;
  std::unique_ptr<Ticker> ticker, scrubber;
};

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Listen(const Options& options) {
  auto impl = std::make_unique<Impl>(options);
  // Checked here too, before the control port is opened: it must not open when another port is taken.
  if (options.metrics_address) {
    OASISKV_RETURN_IF_ERROR(
        Annotate(CheckBindable(*options.metrics_address),
                 absl::StrCat("--metrics_address=", options.metrics_address->ToString())));
  }
  OASISKV_ASSIGN_OR_RETURN(
      impl->control, ControlServer::Listen({options.control_address, options.max_attach_waiters,
                                            options.lose_answers, options.lose_answers_seed},
                                           *impl->registry));
  impl->bound.control_address = impl->control->address().ToString();
  impl->options.fabric.control_port = impl->control->address().port;
  OASISKV_RETURN_IF_ERROR(impl->CheckDataPlane());
  if (options.metrics_address) {
    OASISKV_ASSIGN_OR_RETURN(impl->metrics, MetricsServer::Listen(*options.metrics_address));
    impl->bound.metrics_address = impl->metrics->address().ToString();
    impl->metrics->Add(impl->registry);
  }
  return std::unique_ptr<Daemon>(new Daemon(std::move(impl)));
}

absl::Status Daemon::Serve() {
  OASISKV_PAUSE_POINT("daemon.before_pool");
  OASISKV_ASSIGN_OR_RETURN(impl_->core, KvCore::Create(impl_->options.core, Clock::Real()));
  OASISKV_RETURN_IF_ERROR(impl_->ServeDataPlane());
  std::vector<fabric::Endpoint*> endpoints;
  for (const auto& endpoint : impl_->endpoints) endpoints.push_back(endpoint.get());
  if (impl_->metrics != nullptr) {
    impl_->core_metrics = MakeCoreMetrics(*impl_->core, {endpoints.begin(), endpoints.end()});
    impl_->metrics->Add(impl_->core_metrics);
  }
  impl_->ticker = std::make_unique<Ticker>(kTickInterval, [impl = impl_.get()](MonotonicTime now) {
    impl->core->Tick(now);
    impl->EndUnfencedWriters();
    impl->control->Tick(now);
  });
  impl_->scrubber = std::make_unique<Ticker>(
      kScrubInterval, [core = impl_->core.get()](MonotonicTime) { core->Scrub(kScrubBudget); });
  impl_->control->Serve(*impl_->core, std::move(endpoints));
  return absl::OkStatus();
}

std::string BoundAddresses::endpoint(absl::string_view fabric) const {
  for (const fabric::EndpointInfo& info : endpoints) {
    if (info.fabric == fabric) return info.address;
  }
  return "";
}

Daemon::Daemon(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Daemon::~Daemon() = default;

const BoundAddresses& Daemon::bound() const { return impl_->bound; }

uint64_t Daemon::incarnation() const {
  return impl_->core == nullptr ? 0 : impl_->core->incarnation();
}

KvCore* Daemon::core() { return impl_->core.get(); }

void Daemon::BeginDrain() { impl_->control->SetDraining(true); }

bool Daemon::WaitDrained(Duration timeout) {
  const MonotonicTime deadline = Clock::Real().Now() + timeout;
  for (;;) {
    const CapacityInfo info = impl_->core->Capacity();
    const uint64_t sequences =
        info.sequences_open + info.sequences_sealed + info.sequences_released;
    if (sequences + info.grants_reader + info.grants_writer == 0) return true;
    if (Clock::Real().Now() >= deadline) return false;
    std::this_thread::sleep_for(kDrainPoll);
  }
}

}  // namespace oasiskv::server
