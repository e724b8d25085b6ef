#include "tools/bench/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "oasiskv/error.h"

extern char** environ;

namespace oasiskv::bench {
namespace {

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

absl::StatusOr<ChildProcess> ChildProcess::Start(const std::vector<std::string>& args,
                                                 const std::vector<std::string>& environment,
                                                 const std::string& log_path) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return MakeError(ErrorCode::kInternal, absl::StrCat("pipe: ", std::strerror(errno)));
  }
  UniqueFd read_end(ends[0]), write_end(ends[1]);

  std::vector<std::string> argv_texts = args, environment_texts = environment;
  for (char** e = environ; *e != nullptr; ++e) environment_texts.emplace_back(*e);
  std::vector<char*> argv = Pointers(argv_texts), envp = Pointers(environment_texts);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, write_end.get(), STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO,
                                   log_path.empty() ? "/dev/null" : log_path.c_str(),
                                   O_WRONLY | O_CREAT | O_TRUNC, 0600);
  pid_t pid = 0;
  const int error = ::posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    return MakeError(ErrorCode::kNotFound, absl::StrCat("cannot start '", absl::StrJoin(args, " "),
                                                        "': ", std::strerror(error)));
  }
  return ChildProcess(pid, std::move(read_end));
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)), status_(other.status_), out_(std::move(other.out_)) {}

ChildProcess::~ChildProcess() { Stop(); }

bool ChildProcess::Running() {
  if (pid_ != 0 && ::waitpid(pid_, &status_, WNOHANG) == pid_) pid_ = 0;
  return pid_ != 0;
}

absl::StatusOr<std::string> ChildProcess::ReadAll(Duration timeout) {
  const MonotonicTime deadline = Clock::Real().Now() + timeout;
  std::string text;
  char buffer[4096];
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::Real().Now());
    pollfd waiting{out_.get(), POLLIN, 0};
    if (left.count() <= 0 || ::poll(&waiting, 1, static_cast<int>(left.count())) == 0) {
      Stop();
      return MakeError(ErrorCode::kDeadlineExceeded, "the program did not end in time");
    }
    const ssize_t n = ::read(out_.get(), buffer, sizeof(buffer));
    if (n <= 0) break;
    text.append(buffer, static_cast<size_t>(n));
  }
  while (Running() && Clock::Real().Now() < deadline) std::this_thread::sleep_for(Millis(1));
  if (Running()) Stop();
  if (!WIFEXITED(status_) || WEXITSTATUS(status_) != 0) {
    return MakeError(ErrorCode::kInternal,
                     absl::StrCat("the program ended with wait status ", status_));
  }
  return text;
}

void ChildProcess::Stop() {
  if (!Running()) return;
  ::kill(pid_, SIGTERM);
  const MonotonicTime deadline = Clock::Real().Now() + std::chrono::seconds(8);
  while (Running() && Clock::Real().Now() < deadline) std::this_thread::sleep_for(Millis(2));
  if (!Running()) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, &status_, 0);
  pid_ = 0;
}

}  // namespace oasiskv::bench
