#include "tools/oasisctl/doctor/check.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace oasiskv::oasisctl {
namespace {

constexpr size_t kColumns = 100;
constexpr size_t kIndent = 21;  // room for "fail  locked_memory  "

const char* HealthName(Health health) {
  switch (health) {
    case Health::kOk:
      return "ok";
    case Health::kWarn:
      return "warn";
    case Health::kFail:
      break;
  }
  return "fail";
}

uint64_t Count(const std::vector<Check>& checks, Health health) {
  return static_cast<uint64_t>(std::count_if(
      checks.begin(), checks.end(), [&](const Check& check) { return check.health == health; }));
}

// Appends the lines of `text`, wrapped at spaces; `out` stands at column kIndent at the start.
void Wrap(std::string& out, const std::string& text) {
  bool first_line = true;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!first_line) out.append("\n").append(kIndent, ' ');
    first_line = false;
    const size_t lead = std::min(line.find_first_not_of(' '), line.size());
    out.append(lead, ' ');
    size_t column = kIndent + lead;
    bool first_word = true;
    for (const absl::string_view word : absl::StrSplit(line, ' ', absl::SkipWhitespace())) {
      if (!first_word && column + 1 + word.size() > kColumns) {
        out.append("\n").append(kIndent + lead, ' ');
        column = kIndent + lead;
      } else if (!first_word) {
        out += ' ';
        ++column;
      }
      absl::StrAppend(&out, word);
      column += word.size();
      first_word = false;
    }
  }
  out += '\n';
}

void AppendField(std::string& out, std::string head, const std::string& text) {
  if (text.empty()) return;
  head.resize(std::max(kIndent, head.size() + 1), ' ');
  out += head;
  Wrap(out, text);
}

}  // namespace

std::vector<Check> Examine(const World& world, const Wants& wants) {
  const std::vector<RdmaDevice> devices = ReadRdmaDevices(world);
  return {CheckMemory(world, wants),
          CheckHugePages(world, wants),
          CheckOvercommit(world, wants),
          CheckDevShm(world),
          CheckRdmaDevices(devices),
          CheckRdmaChoice(world, wants, devices),
          CheckLockedMemory(world, wants, devices),
          CheckNuma(world, wants, devices),
          CheckGpu(world, devices),
          CheckGpuDirect(world),
          CheckUcx(world),
          CheckMapCount(world),
          CheckOpenFiles(world),
          CheckShmSocket(world),
          CheckPorts(world)};
}

Health WorstOf(const std::vector<Check>& checks) {
  Health worst = Health::kOk;
  for (const Check& check : checks) worst = std::max(worst, check.health);
  return worst;
}

std::string ForPeople(const std::vector<Check>& checks) {
  std::string out;
  for (const Check& check : checks) {
    std::string head = HealthName(check.health);
    head.resize(6, ' ');
    AppendField(out, head + check.name, check.found);
    AppendField(out, "      why:", check.why);
    AppendField(out, "      fix:", check.fix);
  }
  absl::StrAppend(&out, "\n", Count(checks, Health::kOk), " ok, ", Count(checks, Health::kWarn),
                  " warn, ", Count(checks, Health::kFail), " fail\n");
  return out;
}

std::string ForPrograms(const std::vector<Check>& checks) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Check& check : checks) {
    list.push_back({{"name", check.name},
                    {"status", HealthName(check.health)},
                    {"found", check.found},
                    {"why", check.why},
                    {"fix", check.fix},
                    {"facts", check.facts}});
  }
  const nlohmann::ordered_json all = {{"status", HealthName(WorstOf(checks))},
                                      {"ok", Count(checks, Health::kOk)},
                                      {"warn", Count(checks, Health::kWarn)},
                                      {"fail", Count(checks, Health::kFail)},
                                      {"checks", std::move(list)}};
  // A device's name need not be UTF-8.
  return all.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace oasiskv::oasisctl
