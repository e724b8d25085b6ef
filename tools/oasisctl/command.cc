#include "tools/oasisctl/command.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "oasiskv/error.h"

namespace oasiskv::oasisctl {
namespace {

absl::Status Bad(absl::string_view message) {
  return MakeError(ErrorCode::kInvalidArgument, message);
}

std::string Padded(std::string text, size_t width) {
  text.resize(std::max(width, text.size() + 2), ' ');
  return text;
}

std::string Help(const Command& node, const std::string& path) {
  std::string out = absl::StrCat(node.help, "\n\nUsage: ", path);
  if (!node.children.empty()) absl::StrAppend(&out, node.run ? " [COMMAND]" : " COMMAND");
  absl::StrAppend(&out, node.run ? " [FLAGS]\n" : "\n");
  if (!node.children.empty()) {
    absl::StrAppend(&out, "\nCommands (each has its own --help and -h):\n");
    for (const Command& child : node.children) {
      absl::StrAppend(&out, "  ", Padded(child.name, 14), child.help, "\n");
    }
  }
  if (node.run) {
    absl::StrAppend(&out, "\nFlags:\n");
    for (const FlagSpec& flag : node.flags) {
      const std::string left =
          absl::StrCat("--", flag.name, flag.value.empty() ? "" : "=", flag.value);
      absl::StrAppend(&out, "  ", Padded(left, 34), flag.help, "\n");
    }
  }
  return out;
}

absl::Status NotACommand(const std::string& word, const Command& node) {
  if (node.children.empty()) {
    return Bad(absl::StrCat("'", word, "' is not a flag, and ", node.name, " has no commands"));
  }
  const auto name_of = [](std::string* out, const Command& c) { absl::StrAppend(out, c.name); };
  return Bad(absl::StrCat("'", word, "' is not a command of ", node.name,
                          "; its commands: ", absl::StrJoin(node.children, ", ", name_of)));
}

int UsageError(const absl::Status& status, const std::string& path) {
  std::fprintf(stderr, "oasisctl: %s; see %s --help\n", std::string(status.message()).c_str(),
               path.c_str());
  return kExitUsage;
}

}  // namespace

std::string Arguments::Get(const std::string& flag, const std::string& fallback) const {
  const auto it = flags_.find(flag);
  return it == flags_.end() ? fallback : it->second;
}

absl::StatusOr<uint64_t> Arguments::Number(const std::string& flag, uint64_t fallback) const {
  const auto it = flags_.find(flag);
  if (it == flags_.end()) return fallback;
  uint64_t value = 0;
  if (!absl::SimpleAtoi(it->second, &value)) {
    return Bad(absl::StrCat("--", flag, "=", it->second, " is not a number"));
  }
  return value;
}

absl::StatusOr<Duration> Arguments::Time(const std::string& flag, Duration fallback) const {
  const auto it = flags_.find(flag);
  if (it == flags_.end()) return fallback;
  absl::Duration value;
  if (!absl::ParseDuration(it->second, &value) || value <= absl::ZeroDuration() ||
      value > absl::Hours(24)) {
    return Bad(absl::StrCat("--", flag, "=", it->second,
                            " is not a time; write 500ms or 5s, more than 0 and at most 24h"));
  }
  return absl::ToChronoNanoseconds(value);
}

absl::StatusOr<Arguments> Arguments::Parse(const std::vector<std::string>& words,
                                           const std::vector<FlagSpec>& specs) {
  Arguments out;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (!absl::StartsWith(word, "--")) {
      return Bad(
          absl::StrCat("'", word, "' is not a flag; flags are --name=value or --name value"));
    }
    const size_t equals = word.find('=');
    const std::string name = word.substr(2, equals == word.npos ? equals : equals - 2);
    const auto spec =
        std::find_if(specs.begin(), specs.end(), [&](const FlagSpec& s) { return s.name == name; });
    if (spec == specs.end()) return Bad(absl::StrCat("--", name, " is not a flag of this command"));
    if (spec->value.empty()) {
      if (equals != word.npos) return Bad(absl::StrCat("--", name, " takes no value"));
      out.flags_[name] = "";
    } else if (equals != word.npos) {
      out.flags_[name] = word.substr(equals + 1);
    } else if (i + 1 < words.size()) {
      out.flags_[name] = words[++i];
    } else {
      return Bad(absl::StrCat("--", name, " needs a value"));
    }
  }
  return out;
}

int RunCommand(const Command& root, const std::vector<std::string>& words) {
  const Command* node = &root;
  std::string path = root.name;
  size_t at = 0;
  for (; at < words.size(); ++at) {
    const auto child = std::find_if(node->children.begin(), node->children.end(),
                                    [&](const Command& c) { return c.name == words[at]; });
    if (child == node->children.end()) break;
    node = &*child;
    absl::StrAppend(&path, " ", node->name);
  }
  const std::vector<std::string> rest(words.begin() + static_cast<ptrdiff_t>(at), words.end());
  const bool asked_by_word = !rest.empty() && rest[0] == "help";
  if (asked_by_word || std::any_of(rest.begin(), rest.end(), [](const std::string& word) {
        return word == "--help" || word == "-h";
      })) {
    std::fputs(Help(*node, path).c_str(), stdout);
    return kExitOk;
  }
  if (!rest.empty() && (!node->run || !absl::StartsWith(rest[0], "-"))) {
    return UsageError(NotACommand(rest[0], *node), path);
  }
  if (!node->run) {
    std::fputs(Help(*node, path).c_str(), stderr);
    return kExitUsage;
  }
  const auto arguments = Arguments::Parse(rest, node->flags);
  if (!arguments.ok()) return UsageError(arguments.status(), path);
  return node->run(*arguments);
}

}  // namespace oasiskv::oasisctl
