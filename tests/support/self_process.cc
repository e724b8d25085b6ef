#include "tests/support/self_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace oasiskv::testing {

SelfProcess::SelfProcess(const std::vector<std::string>& arguments) {
  static char self[] = "/proc/self/exe";
  std::vector<char*> argv = {self};
  for (const std::string& word : arguments) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) return;
  const UniqueFd theirs(ends[0]);
  input_ = UniqueFd(ends[1]);
  const pid_t parent = ::getpid();
  // Not fork, which copies memory that a device writes to (UCX warns about it), and not posix_spawn,
  // which cannot ask for a signal when the parent dies.
  pid_ = ::vfork();
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);
    ::dup2(theirs.get(), STDIN_FILENO);
    ::execv(self, argv.data());
    ::_exit(127);
  }
  if (pid_ < 0) exit_code_ = 127;  // it could not be started
}

SelfProcess::~SelfProcess() { Kill(); }

bool SelfProcess::Signal(int number) const { return pid_ > 0 && ::kill(pid_, number) == 0; }

void SelfProcess::Kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  int status = 0;
  ::waitpid(pid_, &status, 0);
  exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  pid_ = 0;
}

bool SelfProcess::running() {
  if (pid_ <= 0) return false;
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) return true;
  exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  pid_ = 0;
  return false;
}

}  // namespace oasiskv::testing
