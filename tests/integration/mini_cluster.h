// Daemons for tests: in this process or as processes of their own, behind one interface.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "server/daemon/daemon.h"

namespace oasiskv::testing {

enum class DaemonMode {
  // A server::Daemon object: quick, and pause points work, but signals cannot stop or kill it.
  kInProcess,
  // The built oasiskvd.
  kProcess,
};

// Thread contract: used by one thread at a time.
//
// One daemon that can be started again and again on the same addresses. Its destructor ends it
// without a drain.
class TestDaemon {
 public:
  virtual ~TestDaemon() = default;

  // Returns when it serves. From the second start on it asks for the ports that it had first.
  virtual absl::Status Start() = 0;
  // Drains and ends it, as SIGTERM does; the exit code (0 in process).
  virtual absl::StatusOr<int> Stop() = 0;
  // Ends it at once: SIGKILL; in process it is destroyed without a drain. Does nothing if it does not
  // run.
  virtual void Kill() = 0;
  // SIGSTOP and SIGCONT. UNSUPPORTED in process.
  virtual absl::Status Pause() = 0;
  virtual absl::Status Resume() = 0;
  virtual bool running() = 0;
  // Of the process; 0 in process.
  virtual pid_t pid() const = 0;
  // Only in process, null otherwise.
  virtual server::Daemon* daemon() = 0;

  // Kills it if it runs, and starts it.
  absl::Status Restart() {
    Kill();
    return Start();
  }
  // Of the last start.
  const server::BoundAddresses& addresses() const { return addresses_; }
  uint64_t incarnation() const { return incarnation_; }

 protected:
  server::BoundAddresses addresses_;
  uint64_t incarnation_ = 0;
};

struct MiniClusterOptions {
  DaemonMode mode = DaemonMode::kProcess;
  int daemons = 1;
  // Flags of oasiskvd, for every daemon, on top of: any free ports on 127.0.0.1, a socket in the
  // cluster's own folder, a pool of 64 MiB in slabs of 2 MiB, warnings only, a drain of at most
  // 100 ms, no metrics (their HTTP server takes up to 2 s to stop).
  std::vector<std::string> flags;
};

// Thread contract: used by one thread at a time.
class MiniCluster {
 public:
  // Every daemon serves when it returns.
  static absl::StatusOr<std::unique_ptr<MiniCluster>> Start(const MiniClusterOptions& options);
  // Ends the daemons, removes the folder.
  ~MiniCluster();

  TestDaemon& daemon(int index = 0) { return *daemons_.at(index); }
  int size() const { return static_cast<int>(daemons_.size()); }
  // An empty folder of the cluster's own, for sockets and files.
  const std::string& folder() const { return folder_; }

 private:
  MiniCluster() = default;
  std::string folder_;
  std::vector<std::unique_ptr<TestDaemon>> daemons_;
};

// What ended and what it said.
struct ProcessResult {
  int exit_code = -1;  // negative: the signal that ended it
  std::string output;  // stdout and stderr
  Duration took{0};
};
// Runs a program to its end, at most `timeout`, after which it is killed. For programs that are
// expected to end.
absl::StatusOr<ProcessResult> RunProcess(const std::vector<std::string>& command,
                                         Duration timeout = std::chrono::seconds(30));

// Paths of the built programs. OASISKVD in the environment names another daemon, as for the Python
// tests.
std::string OasiskvdPath();
std::string OasisctlPath();

}  // namespace oasiskv::testing
