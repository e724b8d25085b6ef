// Sets Abseil flags from a command line, and returns errors.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace oasiskv::server {

// Thread contract: all functions work on the process's flags; one thread at a time.
//
// absl::ParseCommandLine ends the process when a flag is wrong; this returns the error instead. Takes
//   --name=value, --name value
//   --name, --noname    (boolean flags)
//   --flagfile=PATH     (may be repeated, and may nest)
//   --                  (the end of the flags)
// A flag file has one flag per line, always with '='; blank lines and lines that begin with '#' are
// skipped. Later settings win. Errors: INVALID_ARGUMENT naming the flag, and the file and line if it
// came from a file.
absl::Status ParseFlags(const std::vector<std::string>& args);

// Gives every flag that is defined below `folder` its default.
void ResetFlags(absl::string_view folder);

// "--name=value" of every flag that is defined below `folder`, by name: a flag file of the present
// values.
std::string CurrentFlags(absl::string_view folder);

// The same flags with defaults and help, for --help.
std::string FlagHelp(absl::string_view folder);

}  // namespace oasiskv::server
