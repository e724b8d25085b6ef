#include "server/options/flag_parser.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::server {
namespace {

// Otherwise a file that names itself would be read for ever.
constexpr int kMaxFlagFileDepth = 8;

absl::Status Bad(absl::string_view message) {
  return MakeError(ErrorCode::kInvalidArgument, message);
}

absl::Status Set(absl::CommandLineFlag& flag, absl::string_view value) {
  std::string error;
  if (flag.ParseFrom(value, &error)) return absl::OkStatus();
  return Bad(absl::StrCat("--", flag.Name(), "=", value, ": ", error));
}

absl::Status ParseList(const std::vector<std::string>& args, int depth);

absl::Status ParseFile(absl::string_view path, int depth) {
  if (depth > kMaxFlagFileDepth) {
    return Bad(
        absl::StrCat("--flagfile=", path, ": flag files nest deeper than ", kMaxFlagFileDepth));
  }
  std::ifstream in{std::string(path)};
  if (!in) return Bad(absl::StrCat("--flagfile=", path, ": ", std::strerror(errno)));
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    const absl::string_view text = absl::StripAsciiWhitespace(line);
    if (text.empty() || text.front() == '#') continue;
    if (const absl::Status status = ParseList({std::string(text)}, depth); !status.ok()) {
      return Annotate(status, absl::StrCat(path, ":", number));
    }
  }
  return absl::OkStatus();
}

absl::Status ParseList(const std::vector<std::string>& args, int depth) {
  for (size_t i = 0; i < args.size(); ++i) {
    absl::string_view arg = args[i];
    if (arg == "--") {
      if (i + 1 == args.size()) return absl::OkStatus();
      return Bad(absl::StrCat("'", args[i + 1], "': only flags are understood; see --help"));
    }
    if (!absl::ConsumePrefix(&arg, "--")) {
      return Bad(absl::StrCat("'", arg, "': only flags (--name=value) are understood; see --help"));
    }
    const size_t equals = arg.find('=');
    const bool has_value = equals != arg.npos;
    const absl::string_view name = arg.substr(0, equals);
    absl::string_view value = has_value ? arg.substr(equals + 1) : absl::string_view();

    absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
    if (flag != nullptr && flag->IsOfType<bool>() && !has_value) {
      OASISKV_RETURN_IF_ERROR(Set(*flag, "true"));
      continue;
    }
    if (flag == nullptr && !has_value && absl::StartsWith(name, "no")) {
      flag = absl::FindCommandLineFlag(name.substr(2));
      if (flag != nullptr && flag->IsOfType<bool>()) {
        OASISKV_RETURN_IF_ERROR(Set(*flag, "false"));
        continue;
      }
      flag = nullptr;
    }
    const bool is_file = name == "flagfile";
    if (flag == nullptr && !is_file) {
      return Bad(absl::StrCat("--", name, " is not a flag of this program; see --help"));
    }
    if (!has_value) {
      if (i + 1 == args.size()) return Bad(absl::StrCat("--", name, " needs a value"));
      value = args[++i];
    }
    OASISKV_RETURN_IF_ERROR(is_file ? ParseFile(value, depth + 1) : Set(*flag, value));
  }
  return absl::OkStatus();
}

std::map<std::string, absl::CommandLineFlag*> FlagsBelow(absl::string_view folder) {
  std::map<std::string, absl::CommandLineFlag*> out;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (absl::StrContains(flag->Filename(), folder)) out.emplace(std::string(name), flag);
  }
  return out;
}

}  // namespace

absl::Status ParseFlags(const std::vector<std::string>& args) { return ParseList(args, 0); }

void ResetFlags(absl::string_view folder) {
  std::string error;  // a default always parses
  for (const auto& [name, flag] : FlagsBelow(folder)) flag->ParseFrom(flag->DefaultValue(), &error);
}

std::string CurrentFlags(absl::string_view folder) {
  std::string out;
  for (const auto& [name, flag] : FlagsBelow(folder)) {
    absl::StrAppend(&out, "--", name, "=", flag->CurrentValue(), "\n");
  }
  return out;
}

std::string FlagHelp(absl::string_view folder) {
  std::string out;
  for (const auto& [name, flag] : FlagsBelow(folder)) {
    absl::StrAppend(&out, "  --", name, "=", flag->DefaultValue(), "\n      ", flag->Help(), "\n");
  }
  absl::StrAppend(&out, "  --flagfile=PATH\n      Reads flags from a file, one per line.\n");
  return out;
}

}  // namespace oasiskv::server
