// The tree of commands, and the flags that a command line gives them.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"

namespace oasiskv::oasisctl {

// Exit codes of the program; README.md has them too.
enum ExitCode {
  kExitOk = 0,
  kExitRefused = 1,      // the daemon answered with an error
  kExitUsage = 2,        // the command line is wrong
  kExitUnreachable = 3,  // no daemon answered within the timeout
  kExitNotServing = 4,   // health: the daemon answers but does not serve
  kExitUnfit = 5,        // doctor: a check failed
};

// One flag of a command.
struct FlagSpec {
  std::string name;
  std::string value;  // what the help shows after '='; empty: the flag takes no value
  std::string help;
};

// Thread contract: a plain value.
class Arguments {
 public:
  bool Has(const std::string& flag) const { return flags_.contains(flag); }
  std::string Get(const std::string& flag, const std::string& fallback = "") const;
  // `fallback` when the flag is not given. Error: INVALID_ARGUMENT naming the flag.
  absl::StatusOr<uint64_t> Number(const std::string& flag, uint64_t fallback) const;
  // "500ms", "5s".
  absl::StatusOr<Duration> Time(const std::string& flag, Duration fallback) const;

  // Reads --name=value, --name value and --name as `specs` allow. Error: INVALID_ARGUMENT.
  static absl::StatusOr<Arguments> Parse(const std::vector<std::string>& words,
                                         const std::vector<FlagSpec>& specs);

 private:
  std::map<std::string, std::string> flags_;
};

// Thread contract: a plain value, built once.
//
// A node has children or a `run`, or both: then `run` is what it does when no child is named. Every
// node prints its own help on --help and -h.
struct Command {
  std::string name;
  std::string help;  // one line
  std::vector<FlagSpec> flags = {};
  std::function<int(const Arguments&)> run = nullptr;
  std::vector<Command> children = {};
};

// Runs the node that `words` name; returns the exit code. Help goes to stdout, errors to stderr.
int RunCommand(const Command& root, const std::vector<std::string>& words);

}  // namespace oasiskv::oasisctl
