#include "tests/fabric/soak_process.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "tests/integration/mini_cluster.h"

namespace oasiskv::testing {
namespace {

std::string Contents(const std::filesystem::path& path) {
  std::ifstream file(path);
  return std::string((std::istreambuf_iterator<char>(file)), {});
}

}  // namespace

ProcessFigures FiguresOf(pid_t process) {
  const std::string folder = absl::StrCat("/proc/", process);
  ProcessFigures out;
  std::error_code gone;  // a process that has ended holds nothing
  for (const auto& entry : std::filesystem::directory_iterator(folder + "/fd", gone)) {
    if (!entry.path().empty()) ++out.descriptors;
  }
  std::istringstream status(Contents(folder + "/status"));
  for (std::string line; std::getline(status, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    if (name == "Threads:") words >> out.threads;
    if (name == "VmRSS:") words >> out.kib;
  }
  return out;
}

std::map<std::string, int64_t> RdmaResources() {
  std::map<std::string, int64_t> out;
  const auto shown = RunProcess({"/usr/bin/env", "rdma", "resource", "show"});
  if (!shown.ok() || shown->exit_code != 0) return out;
  std::istringstream lines(shown->output);
  for (std::string line; std::getline(lines, line);) {
    // 0: rxe0: pd 1 cq 1 qp 1 cm_id 0 mr 0 ctx 0 srq 0
    std::istringstream words(line);
    std::string number, device, kind;
    int64_t count = 0;
    if (!(words >> number >> device) || device.back() != ':') continue;
    device.pop_back();
    while (words >> kind >> count) out[absl::StrCat(device, " ", kind)] = count;
  }
  return out;
}

std::string WhereThreadsWait(pid_t process) {
  std::string out;
  std::error_code gone;
  for (const auto& task :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", process, "/task"), gone)) {
    std::string name = Contents(task.path() / "comm");
    if (!name.empty()) name.pop_back();
    absl::StrAppend(&out, "  ", name, ": ", Contents(task.path() / "wchan"), "\n",
                    Contents(task.path() / "stack"));
  }
  return out;
}

}  // namespace oasiskv::testing
