#include "tests/integration/process_daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/mapped_memory.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"
#include "tests/integration/eventually.h"

extern char** environ;

namespace oasiskv::testing {
namespace {

// Every thread of it is stopped.
bool StandsStill(pid_t pid) {
  for (const auto& task :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/task"))) {
    std::ifstream file(task.path() / "stat");
    const std::string stat((std::istreambuf_iterator<char>(file)), {});
    const size_t name_end = stat.rfind(')');
    if (name_end == std::string::npos || stat.compare(name_end, 4, ") T ") != 0) return false;
  }
  return true;
}

constexpr Duration kStartTimeout = std::chrono::seconds(60);
constexpr Duration kStopTimeout = std::chrono::seconds(60);

// Starts a program; with `output_fd` >= 0 its stdout and stderr go there.
absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& command, int output_fd) {
  std::vector<char*> argv;
  argv.reserve(command.size() + 1);
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (output_fd >= 0) {
    posix_spawn_file_actions_adddup2(&actions, output_fd, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, output_fd, STDERR_FILENO);
  }
  pid_t pid = 0;
  const int error = ::posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    return MakeError(ErrorCode::kInternal,
                     absl::StrCat("cannot start ", command[0], ": ", std::strerror(error)));
  }
  return pid;
}

int ExitCode(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status); }

// Thread contract: as TestDaemon.
class ProcessDaemon : public TestDaemon {
 public:
  ProcessDaemon(std::vector<std::string> flags, std::string ready_file)
      : flags_(std::move(flags)), ready_file_(std::move(ready_file)) {}
  ~ProcessDaemon() override { Kill(); }

  absl::Status Start() override {
    std::vector<std::string> command = {OasiskvdPath(), "--ready_file=" + ready_file_};
    command.insert(command.end(), flags_.begin(), flags_.end());
    PinAddresses(addresses_, command);
    ::unlink(ready_file_.c_str());  // a killed daemon leaves it
    OASISKV_ASSIGN_OR_RETURN(pid_, Spawn(command, -1));
    const MonotonicTime deadline = Clock::Real().Now() + kStartTimeout;
    while (!ReadReadyFile()) {
      if (!running()) {
        return MakeError(ErrorCode::kInternal,
                         absl::StrCat("oasiskvd ended with ", exit_code_, " before it served"));
      }
      if (Clock::Real().Now() > deadline) {
        Kill();
        return MakeError(ErrorCode::kDeadlineExceeded, "oasiskvd does not get ready");
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<int> Stop() override {
    if (!running()) return NotRunning();
    ::kill(pid_, SIGTERM);
    const MonotonicTime deadline = Clock::Real().Now() + kStopTimeout;
    while (running()) {
      if (Clock::Real().Now() > deadline) {
        Kill();
        return MakeError(ErrorCode::kDeadlineExceeded, "oasiskvd does not end on SIGTERM");
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return exit_code_;
  }

  void Kill() override {
    if (!running()) return;
    ::kill(pid_, SIGKILL);
    int status = 0;
    ::waitpid(pid_, &status, 0);
    exit_code_ = ExitCode(status);
    pid_ = 0;
  }
  absl::Status Pause() override {
    OASISKV_RETURN_IF_ERROR(Signal(SIGSTOP));
    // A stop reaches a process's threads one after the other; until the last has stopped, the
    // daemon may still answer.
    if (Eventually([this] { return StandsStill(pid_); })) return absl::OkStatus();
    return MakeError(ErrorCode::kDeadlineExceeded, "oasiskvd does not stop on SIGSTOP");
  }
  absl::Status Resume() override { return Signal(SIGCONT); }

  bool running() override {
    if (pid_ == 0) return false;
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) != pid_) return true;
    exit_code_ = ExitCode(status);
    pid_ = 0;
    return false;
  }
  pid_t pid() const override { return pid_; }
  server::Daemon* daemon() override { return nullptr; }

 private:
  absl::Status Signal(int signal) {
    if (!running()) return NotRunning();
    ::kill(pid_, signal);
    return absl::OkStatus();
  }

  bool ReadReadyFile() {
    std::ifstream in(ready_file_);
    if (!in) return false;
    const auto json = nlohmann::json::parse(in, nullptr, /*allow_exceptions=*/false);
    if (json.is_discarded()) return false;
    addresses_.control_address = json["control_address"];
    addresses_.metrics_address = json["metrics_address"];
    addresses_.endpoints.clear();
    for (const auto& [fabric, address] : json["fabrics"].items()) {
      addresses_.endpoints.push_back({fabric, address, ""});
    }
    incarnation_ = json["incarnation"];
    return json["pid"] == pid_;
  }

  const std::vector<std::string> flags_;
  const std::string ready_file_;
  pid_t pid_ = 0;
  int exit_code_ = 0;
};

}  // namespace

std::unique_ptr<TestDaemon> MakeProcessDaemon(std::vector<std::string> flags,
                                              std::string ready_file) {
  return std::make_unique<ProcessDaemon>(std::move(flags), std::move(ready_file));
}

void PinAddresses(const server::BoundAddresses& addresses, std::vector<std::string>& flags) {
  const auto pin = [&](const char* flag, const std::string& address) {
    if (!address.empty()) flags.push_back(absl::StrCat("--", flag, "=", address));
  };
  pin("control_address", addresses.control_address);
  pin("metrics_address", addresses.metrics_address);
  pin("ucx_address", addresses.endpoint("ucx"));
}

absl::Status NotRunning() {
  return MakeError(ErrorCode::kPeerLost, "the daemon of this test does not run");
}

absl::StatusOr<ProcessResult> RunProcess(const std::vector<std::string>& command,
                                         Duration timeout) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return MakeError(ErrorCode::kInternal, "no pipe");
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  const MonotonicTime start = Clock::Real().Now();
  OASISKV_ASSIGN_OR_RETURN(const pid_t pid, Spawn(command, write_end.get()));
  write_end.Reset();
  ProcessResult result;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(start + timeout -
                                                                            Clock::Real().Now());
    pollfd wait{read_end.get(), POLLIN, 0};
    if (left.count() <= 0 || ::poll(&wait, 1, static_cast<int>(left.count())) <= 0) {
      ::kill(pid, SIGKILL);
      break;
    }
    char buffer[4096];
    const ssize_t n = ::read(read_end.get(), buffer, sizeof(buffer));
    if (n <= 0) break;
    result.output.append(buffer, static_cast<size_t>(n));
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  result.exit_code = ExitCode(status);
  result.took = Clock::Real().Now() - start;
  return result;
}

}  // namespace oasiskv::testing
