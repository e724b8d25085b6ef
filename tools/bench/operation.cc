#include "tools/bench/operation.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/parse.h"
#include "absl/flags/reflection.h"
#include "absl/flags/usage.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "common/log.h"
#include "common/status_macros.h"

namespace oasiskv::bench {
namespace {

constexpr char kOwnFiles[] = "tools/bench/";

bool IsFlagOf(const Operation& operation, const absl::CommandLineFlag& flag) {
  return std::any_of(operation.flag_files.begin(), operation.flag_files.end(),
                     [&](absl::string_view file) {
                       return absl::EndsWith(flag.Filename(), absl::StrCat(kOwnFiles, file));
                     });
}

bool AsksForHelp(absl::string_view argument) {
  return argument == "--help" || argument == "-help" || argument == "-h";
}

std::string Help(absl::string_view program, absl::string_view what,
                 std::span<const Operation> operations) {
  std::string text = absl::StrCat(program, " OPERATION [--flags]: ", what, "\n\n");
  for (const Operation& o : operations) {
    absl::StrAppend(&text, "  ", o.name, std::string(8 - std::min<size_t>(7, strlen(o.name)), ' '),
                    o.what, o.elsewhere != nullptr ? absl::StrCat(" (", o.elsewhere, ")") : "",
                    "\n          ", program, " ", o.example, "\n");
  }
  absl::StrAppend(&text, "\n", program,
                  " OPERATION --help lists the operation's flags.\n"
                  "Exit status: 0, 1 where something failed, 2 for a wrong call.\n");
  return text;
}

std::string HelpOf(const Operation& operation, absl::string_view program) {
  std::string text = absl::StrCat(program, " ", operation.name, " [--flags]: ", operation.what,
                                  "\n\nExample: ", program, " ", operation.example,
                                  "\n\nFlags with their defaults:\n");
  std::map<std::string, const absl::CommandLineFlag*> flags;  // by name
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (IsFlagOf(operation, *flag)) flags[std::string(name)] = flag;
  }
  for (const auto& [name, flag] : flags) {
    absl::StrAppend(&text, "  --", name, "=", flag->DefaultValue(), "\n      ", flag->Help(), "\n");
  }
  return text;
}

// The flag that an argument names; null: none does.
const absl::CommandLineFlag* FlagOf(absl::string_view argument) {
  argument = argument.substr(0, argument.find('='));
  absl::ConsumePrefix(&argument, "-");
  absl::ConsumePrefix(&argument, "-");
  const absl::CommandLineFlag* flag = absl::FindCommandLineFlag(argument);
  if (flag == nullptr && absl::ConsumePrefix(&argument, "no")) {
    flag = absl::FindCommandLineFlag(argument);
  }
  return flag;
}

// Abseil's flags are the program's: without this an operation would pass over those of another.
absl::Status CheckFlags(const Operation& operation, std::span<char* const> arguments) {
  for (const absl::string_view argument : arguments) {
    if (argument.size() < 2 || argument[0] != '-' || absl::ascii_isdigit(argument[1])) continue;
    const absl::CommandLineFlag* const flag = FlagOf(argument);
    if (flag == nullptr ||
        (absl::StrContains(flag->Filename(), kOwnFiles) && !IsFlagOf(operation, *flag))) {
      return Refuse(absl::StrCat("'", argument, "' is not a flag of ", operation.name,
                                 "; --help lists those it has"));
    }
  }
  return absl::OkStatus();
}

// Does not return unless the program cannot be started.
absl::Status Start(const Operation& operation, char** argv) {
  const std::string path =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / operation.elsewhere;
  ::execv(path.c_str(), argv);
  return MakeError(ErrorCode::kNotFound,
                   absl::StrCat("cannot start ", path, ": ", std::strerror(errno),
                                "; it is built where nvcc is found (OASISKV_CUDA)"));
}

absl::Status Run(const Operation& operation, int argc, char** argv) {
  if (operation.run == nullptr) return Start(operation, argv);
  OASISKV_RETURN_IF_ERROR(CheckFlags(operation, {argv + 2, argv + argc}));
  const std::vector<char*> rest = absl::ParseCommandLine(argc - 1, argv + 1);
  if (rest.size() > 1) return Refuse(absl::StrCat("'", rest[1], "' is not a flag"));
  return operation.run();
}

}  // namespace

int RunProgram(int argc, char** argv, absl::string_view program, absl::string_view what,
               std::span<const Operation> operations) {
  const std::string help = Help(program, what, operations);
  absl::SetProgramUsageMessage(help);
  SetLogLevel(LogLevel::kWarning);
  if (argc < 2 || AsksForHelp(argv[1])) {
    std::fputs(help.c_str(), argc < 2 ? stderr : stdout);
    return argc < 2 ? 2 : 0;
  }
  const std::string name = argv[1];
  const auto operation = std::find_if(operations.begin(), operations.end(),
                                      [&](const Operation& o) { return o.name == name; });
  if (operation == operations.end()) {
    std::fprintf(stderr, "%s: '%s' is not an operation, which comes first\n\n%s",
                 std::string(program).c_str(), name.c_str(), help.c_str());
    return 2;
  }
  if (operation->run != nullptr && std::any_of(argv + 2, argv + argc, AsksForHelp)) {
    std::fputs(HelpOf(*operation, program).c_str(), stdout);
    return 0;
  }
  const absl::Status status = Run(*operation, argc, argv);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s %s: %s\n", std::string(program).c_str(), name.c_str(),
               std::string(status.message()).c_str());
  return ErrorCodeOf(status) == ErrorCode::kInvalidArgument ? 2 : 1;
}

}  // namespace oasiskv::bench
