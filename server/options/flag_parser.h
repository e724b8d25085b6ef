// Fills Abseil flags from a command line, with errors as values.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace oasiskv::server {

// Thread contract: all functions work on the process's flags; one thread at a time.
//
// absl::ParseCommandLine ends the process itself when a flag is wrong; a daemon and its tests want
// the error instead. Understood: --name=value, --name value, --name and --noname (boolean),
// --flagfile=PATH (repeatable, may nest), "--" ends. A flag file has one flag a line, as on the
// command line but always with '='; blank lines and lines that begin with '#' are skipped. Later
// settings win. Errors: INVALID_ARGUMENT naming the flag, and file and line where it came from one.
absl::Status ParseFlags(const std::vector<std::string>& args);

// Gives every flag that is defined below `folder` its default.
void ResetFlags(absl::string_view folder);

// "--name=value" of every flag that is defined below `folder`, by name: a flag file that says the
// same as now.
std::string CurrentFlags(absl::string_view folder);

// The same flags with defaults and help, for --help.
std::string FlagHelp(absl::string_view folder);

}  // namespace oasiskv::server
