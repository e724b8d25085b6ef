#include "server/daemon/daemon.h"

#include <prometheus/collectable.h>
#include <prometheus/registry.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/fabric/connect.h"
#include "common/log.h"
#include "common/mapped_memory.h"
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
constexpr Duration kDrainPoll = std::chrono::milliseconds(20);

// OK when the shm fabric could make its socket at `path` now. Checked before the pool is touched,
// which takes long.
absl::Status CheckSocketPath(const std::string& path) {
  const std::string flag = absl::StrCat("--shm_socket=", path);
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "."
                             : slash == 0               ? "/"
                                                        : path.substr(0, slash);
  if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    return MakeError(ErrorCode::kInvalidArgument, absl::StrCat(flag, ": cannot make a socket in ",
                                                               folder, ": ", std::strerror(errno)));
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrCat(flag, ": the path is longer than the ",
                                  sizeof(address.sun_path) - 1, " bytes a Unix socket may have"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  const UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const UniqueFd stream_fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  for (const UniqueFd* candidate : {&fd, &stream_fd}) {
    if (::connect(candidate->get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) ==
        0) {
      return MakeError(ErrorCode::kAlreadyExists,
                       absl::StrCat(flag,
                                    ": another process serves there; choose another path, or "
                                    "stop that process"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

struct Daemon::Impl {
  explicit Impl(Options daemon_options)
      : options(std::move(daemon_options)), registry(std::make_shared<prometheus::Registry>()) {}

  ~Impl() {
    // End calls before the objects they use, and peers before the memory they reach.
    ticker.reset();
    control.reset();
    metrics.reset();
    core_metrics.reset();
    endpoints.clear();
    core.reset();
  }

  absl::Status CheckDataPlane() const {
    if (options.serve_shm) OASISKV_RETURN_IF_ERROR(CheckSocketPath(bound.shm_socket));
    if (options.serve_ucx) {
      OASISKV_RETURN_IF_ERROR(
          Annotate(CheckBindable(options.ucx_address),
                   absl::StrCat("--ucx_address=", options.ucx_address.ToString())));
    }
    if (options.serve_verbs) {
      OASISKV_RETURN_IF_ERROR(
          Annotate(fabric::CheckVerbsPort(VerbsPort()), "--fabrics names verbs"));
    }
    return absl::OkStatus();
  }

  fabric::VerbsPortOptions VerbsPort() const {
    return {options.verbs_device, options.verbs_port, options.verbs_gid_index};
  }

  absl::Status ServeShm() {
    fabric::ShmEndpointOptions shm;
    shm.socket_path = bound.shm_socket;
    shm.allowed_uids = options.shm_allowed_uids;
    shm.allowed_gid = options.shm_allowed_gid;
    auto endpoint = fabric::ServeShm(shm, core->Export(), *core);
    if (!endpoint.ok()) {
      return Annotate(endpoint.status(), absl::StrCat("--shm_socket=", shm.socket_path));
    }
    endpoints.push_back(*std::move(endpoint));
    return absl::OkStatus();
  }

  absl::Status ServeUcx() {
    const std::string flag = absl::StrCat("--ucx_address=", options.ucx_address.ToString());
    auto resolved = Resolve(options.ucx_address);
    if (!resolved.ok()) return Annotate(resolved.status(), flag);
    fabric::UcxEndpointOptions ucx;
    ucx.host = resolved->ToAddress().host;
    ucx.port = options.ucx_address.port;
    auto endpoint = fabric::ServeUcx(ucx, core->Export(), *core);
    if (!endpoint.ok()) return Annotate(endpoint.status(), flag);
    bound.ucx_address = (*endpoint)->address();
    endpoints.push_back(*std::move(endpoint));
    return absl::OkStatus();
  }

  absl::Status ServeVerbs() {
    auto endpoint = fabric::ServeVerbs({.port = VerbsPort()}, core->Export(), *core);
    if (!endpoint.ok()) return Annotate(endpoint.status(), "--fabrics names verbs");
    bound.verbs_port = (*endpoint)->address();
    verbs = endpoint->get();
    endpoints.push_back(*std::move(endpoint));
    return absl::OkStatus();
  }

  // A writer's key cannot be taken away, so a revoked writer that does not fence loses its
  // connection. A mapping (shm) cannot be taken away at all.
  void EndUnfencedWriters() {
    if (verbs == nullptr) return;
    for (const ConnectionId connection : core->UnfencedWriters(options.fence_timeout)) {
      if (verbs->Close(connection) && unfenced_gate.Pass()) {
        LogWarning("daemon",
                   absl::StrCat("a writer over RDMA did not fence its revoked grant "
                                "within --fence_timeout; its connection is ended (",
                                unfenced_gate.suppressed(), " more such lines held back)"));
      }
    }
  }

  const Options options;
  BoundAddresses bound;
  const std::shared_ptr<prometheus::Registry> registry;
  std::unique_ptr<MetricsServer> metrics;
  std::unique_ptr<ControlServer> control;
  std::unique_ptr<KvCore> core;
  std::vector<std::unique_ptr<fabric::Endpoint>> endpoints;
  fabric::VerbsEndpoint* verbs = nullptr;  // one of the endpoints
  LogGate unfenced_gate;
  std::shared_ptr<prometheus::Collectable> core_metrics;
  std::unique_ptr<Ticker> ticker;
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
      impl->control, ControlServer::Listen({options.control_address, options.max_attach_waiters},
                                           *impl->registry));
  impl->bound.control_address = impl->control->address().ToString();
  if (options.serve_shm) {
    impl->bound.shm_socket = options.shm_socket.empty()
                                 ? DefaultShmSocket(impl->control->address().port)
                                 : options.shm_socket;
  }
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
  if (impl_->options.serve_shm) OASISKV_RETURN_IF_ERROR(impl_->ServeShm());
  if (impl_->options.serve_ucx) OASISKV_RETURN_IF_ERROR(impl_->ServeUcx());
  if (impl_->options.serve_verbs) OASISKV_RETURN_IF_ERROR(impl_->ServeVerbs());
  if (impl_->metrics != nullptr) {
    std::vector<const fabric::Endpoint*> endpoints;
    for (const auto& endpoint : impl_->endpoints) endpoints.push_back(endpoint.get());
    impl_->core_metrics = MakeCoreMetrics(*impl_->core, std::move(endpoints));
    impl_->metrics->Add(impl_->core_metrics);
  }
  impl_->ticker = std::make_unique<Ticker>(kTickInterval, [impl = impl_.get()](MonotonicTime now) {
    impl->core->Tick(now);
    impl->EndUnfencedWriters();
    impl->control->Tick(now);
  });
  impl_->control->Serve(*impl_->core,
                        {impl_->bound.shm_socket, impl_->bound.ucx_address, impl_->verbs});
  return absl::OkStatus();
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
    if (info.grants_reader + info.grants_writer == 0) return true;
    if (Clock::Real().Now() >= deadline) return false;
    std::this_thread::sleep_for(kDrainPoll);
  }
}

}  // namespace oasiskv::server
