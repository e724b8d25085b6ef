// A program that the bench starts and ends: a daemon, or the tool that measures a ceiling.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/mapped_memory.h"

namespace oasiskv::bench {

// Thread contract: used by one thread. The destructor ends the process (SIGTERM, then SIGKILL).
class ChildProcess {
 public:
  // `args[0]` is looked up in PATH unless it has a slash. Extra `environment` entries are
  // NAME=value. With capture the child's stdout can be read by ReadAll; its stderr goes to
  // `log_path` (empty: nowhere).
  static absl::StatusOr<ChildProcess> Start(const std::vector<std::string>& args,
                                            const std::vector<std::string>& environment,
                                            const std::string& log_path);
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess();

  int pid() const { return pid_; }
  bool Running();
  // stdout to its end, then the exit status; DEADLINE_EXCEEDED after `timeout` (the process is
  // ended then), INTERNAL for a status other than 0.
  absl::StatusOr<std::string> ReadAll(Duration timeout);
  void Stop();

 private:
  ChildProcess(int pid, UniqueFd out) : pid_(pid), out_(std::move(out)) {}

  int pid_ = 0;
  int status_ = 0;
  UniqueFd out_;
};

}  // namespace oasiskv::bench
