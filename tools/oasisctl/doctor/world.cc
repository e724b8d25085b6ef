#include "tools/oasisctl/doctor/world.h"

#include <dlfcn.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "oasiskv/error.h"

namespace oasiskv::oasisctl {
namespace {

World::Limit LimitOf(__rlimit_resource_t resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0) return {};
  const auto bytes = [](rlim_t value) {
    return value == RLIM_INFINITY ? kUnlimited : uint64_t{value};
  };
  return {bytes(limit.rlim_cur), bytes(limit.rlim_max)};
}

// Loaded here only: if the program were linked against UCX, every command would start slowly.
absl::StatusOr<std::string> UcxVersion() {
  void* library = ::dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return MakeError(ErrorCode::kUnsupported, ::dlerror());
  const auto version =
      reinterpret_cast<const char* (*)()>(::dlsym(library, "ucp_get_version_string"));
  // The library stays loaded, since UCX does not support being unloaded.
  if (version == nullptr)
    return MakeError(ErrorCode::kUnsupported, "libucp.so.0 has no ucp_get_version_string");
  return std::string(version());
}

}  // namespace

World World::OfThisMachine(const fabric::VerbsPortOptions& options) {
  World world;
  world.locked_memory = LimitOf(RLIMIT_MEMLOCK);
  world.open_files = LimitOf(RLIMIT_NOFILE);
  world.verbs_port = fabric::verbs::PortToTake(options);
  world.ucx_version = UcxVersion();
  world.free_bytes = [](const std::string& path) -> std::optional<uint64_t> {
    struct statvfs space {};
    if (::statvfs(path.c_str(), &space) != 0) return std::nullopt;
    return uint64_t{space.f_bavail} * space.f_frsize;
  };
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::pair<std::string, std::string> variable =
        absl::StrSplit(*entry, absl::MaxSplits('=', 1));
    world.environment.insert(variable);
  }
  return world;
}

std::optional<std::string> World::File(const std::string& path) const {
  std::ifstream file(root + path);
  std::stringstream text;
  // Some files of sysfs can be opened but not read.
  if (!file || !(text << file.rdbuf())) return std::nullopt;
  return std::string(absl::StripAsciiWhitespace(text.str()));
}

std::optional<uint64_t> World::Number(const std::string& path) const {
  const auto text = File(path);
  uint64_t value = 0;
  if (!text.has_value() || !absl::SimpleAtoi(*text, &value)) return std::nullopt;
  return value;
}

std::optional<uint64_t> World::Field(const std::string& path, const std::string& key) const {
  const auto text = File(path);
  if (!text.has_value()) return std::nullopt;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    const size_t at = line.find(key);
    // In "Node 0 MemFree: 12 kB" the key is not at the start.
    if (at == line.npos || (at != 0 && line[at - 1] != ' ')) continue;
    line.remove_prefix(at + key.size());
    if (!absl::ConsumePrefix(&line, ":") && !absl::StartsWith(line, " ")) continue;
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipWhitespace());
    uint64_t value = 0;
    if (words.empty() || !absl::SimpleAtoi(words[0], &value)) return std::nullopt;
    return words.size() > 1 && words[1] == "kB" ? value * 1024 : value;
  }
  return std::nullopt;
}

std::vector<std::string> World::Names(const std::string& path) const {
  std::vector<std::string> names;
  std::error_code error;
  for (auto it = std::filesystem::directory_iterator(root + path, error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return std::make_pair(a.size(), a) < std::make_pair(b.size(), b);
  });
  return names;
}

bool World::Exists(const std::string& path) const {
  std::error_code error;
  return std::filesystem::exists(root + path, error);
}

bool World::CanReadAndWrite(const std::string& path) const {
  return ::access((root + path).c_str(), R_OK | W_OK) == 0;
}

bool World::CanMakeFilesIn(const std::string& path) const {
  return ::access((root + path).c_str(), W_OK | X_OK) == 0;
}

std::string World::Variable(const std::string& name) const {
  const auto it = environment.find(name);
  return it == environment.end() ? "" : it->second;
}

}  // namespace oasiskv::oasisctl
