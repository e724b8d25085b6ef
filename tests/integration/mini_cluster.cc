#include "tests/integration/mini_cluster.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"
#include "server/options/options.h"
#include "tests/integration/process_daemon.h"

namespace oasiskv::testing {
namespace {

// Thread contract: as TestDaemon.
class InProcessDaemon : public TestDaemon {
 public:
  explicit InProcessDaemon(std::vector<std::string> flags) : flags_(std::move(flags)) {}

  absl::Status Start() override {
    std::vector<std::string> flags = flags_;
    PinAddresses(addresses_, flags);
    OASISKV_ASSIGN_OR_RETURN(const server::CommandLine line, server::ParseCommandLine(flags));
    OASISKV_ASSIGN_OR_RETURN(auto daemon, server::Daemon::Listen(line.options));
    OASISKV_RETURN_IF_ERROR(daemon->Serve());
    SetLogLevel(line.options.log_level);
    drain_timeout_ = line.options.drain_timeout;
    addresses_ = daemon->bound();
    incarnation_ = daemon->incarnation();
    daemon_ = std::move(daemon);
    return absl::OkStatus();
  }
  absl::StatusOr<int> Stop() override {
    if (daemon_ == nullptr) return NotRunning();
    daemon_->BeginDrain();
    daemon_->WaitDrained(drain_timeout_);
    daemon_.reset();
    return 0;
  }
  void Kill() override { daemon_.reset(); }
  absl::Status Pause() override { return NoSignals(); }
  absl::Status Resume() override { return NoSignals(); }
  bool running() override { return daemon_ != nullptr; }
  pid_t pid() const override { return 0; }
  server::Daemon* daemon() override { return daemon_.get(); }

 private:
  static absl::Status NoSignals() {
    return MakeError(ErrorCode::kUnsupported,
                     "a daemon in this process cannot be stopped by signals");
  }

  const std::vector<std::string> flags_;
  Duration drain_timeout_{0};
  std::unique_ptr<server::Daemon> daemon_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MiniCluster>> MiniCluster::Start(const MiniClusterOptions& options) {
  std::unique_ptr<MiniCluster> cluster(new MiniCluster);
  std::string folder = "/tmp/oasiskv_XXXXXX";  // short: a Unix socket's path has at most 107 bytes
  if (::mkdtemp(folder.data()) == nullptr) {
    return MakeError(ErrorCode::kInternal, absl::StrCat("cannot make ", folder));
  }
  cluster->folder_ = folder;
  for (int i = 0; i < options.daemons; ++i) {
    std::vector<std::string> flags = {"--control_address=127.0.0.1:0",
                                      "--metrics_address=",
                                      "--ucx_address=127.0.0.1:0",
                                      absl::StrCat("--shm_socket=", folder, "/", i, ".sock"),
                                      "--pool_bytes=64MiB",
                                      "--drain_timeout=100ms",
                                      "--slab_bytes=2MiB",
                                      "--log_level=warning"};
    flags.insert(flags.end(), options.flags.begin(), options.flags.end());
    if (options.mode == DaemonMode::kInProcess) {
      cluster->daemons_.push_back(std::make_unique<InProcessDaemon>(std::move(flags)));
    } else {
      cluster->daemons_.push_back(
          MakeProcessDaemon(std::move(flags), absl::StrCat(folder, "/", i, ".ready")));
    }
    OASISKV_RETURN_IF_ERROR(
        Annotate(cluster->daemons_.back()->Start(), absl::StrCat("daemon ", i)));
  }
  return cluster;
}

MiniCluster::~MiniCluster() {
  daemons_.clear();
  std::error_code ignored;  // a folder that stays behind harms no test
  std::filesystem::remove_all(folder_, ignored);
}

std::string OasiskvdPath() {
  const char* other = std::getenv("OASISKVD");
  return other != nullptr ? other : OASISKVD_PATH;
}
std::string OasisctlPath() { return OASISCTL_PATH; }

}  // namespace oasiskv::testing
