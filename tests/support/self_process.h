// Another process of the test program, which can be stopped and killed.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "common/mapped_memory.h"

namespace oasiskv::testing {

// Thread contract: used by one thread at a time.
//
// Runs this program with `arguments`, which its main must know. The process is killed with this
// object, and by the kernel when the test itself dies.
class SelfProcess {
 public:
  explicit SelfProcess(const std::vector<std::string>& arguments);
  ~SelfProcess();
  SelfProcess(const SelfProcess&) = delete;
  SelfProcess& operator=(const SelfProcess&) = delete;

  // False when it has ended already.
  bool Signal(int number) const;
  // Closes the process's standard input, which can tell it to end.
  void CloseInput() { input_.Reset(); }
  // SIGKILL, and waits; nothing when it has ended.
  void Kill();
  // Whether it runs; the exit code afterwards, negative for the signal that ended it.
  bool running();
  int exit_code() const { return exit_code_; }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
  int exit_code_ = 0;
  UniqueFd input_;
};

}  // namespace oasiskv::testing
