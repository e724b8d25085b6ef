// The checks of oasisctl doctor.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/fabric/verbs/verbs.h"
#include "tools/oasisctl/doctor/rdma_devices.h"
#include "tools/oasisctl/doctor/world.h"

namespace oasiskv::oasisctl {

// The daemon's default ports.
constexpr uint16_t kControlPort = 7400;
constexpr uint16_t kMetricsPort = 7401;

// As the daemon's --huge_pages.
enum class HugePages { kOff, kPrefer, kRequire };

// The daemon that will run here; the fields are its flags.
struct Wants {
  uint64_t pool_bytes = uint64_t{1} << 30;
  HugePages huge_pages = HugePages::kPrefer;
  int64_t numa_node = -1;
  fabric::VerbsPortOptions verbs;
};

// kWarn: a daemon can run, but something is slower, smaller or missing. kFail: such a daemon would
// not start, or could not use what the machine has.
enum class Health { kOk, kWarn, kFail };

// Thread contract: a plain value.
struct Check {
  std::string name;  // a stable key
  Health health = Health::kOk;
  std::string found = {};  // may have several lines
  std::string why = {};    // why it matters
  std::string fix = {};    // what to do or type; empty when ok
  nlohmann::ordered_json facts = nlohmann::ordered_json::object();  // what was found, in numbers
};

Check CheckMemory(const World& world, const Wants& wants);
Check CheckHugePages(const World& world, const Wants& wants);
Check CheckLockedMemory(const World& world, const Wants& wants,
                        const std::vector<RdmaDevice>& devices);
Check CheckOvercommit(const World& world, const Wants& wants);
Check CheckDevShm(const World& world);
Check CheckMapCount(const World& world);
Check CheckOpenFiles(const World& world);
Check CheckNuma(const World& world, const Wants& wants, const std::vector<RdmaDevice>& devices);
Check CheckRdmaDevices(const std::vector<RdmaDevice>& devices);
Check CheckRdmaChoice(const World& world, const Wants& wants,
                      const std::vector<RdmaDevice>& devices);
Check CheckUcx(const World& world);
Check CheckGpu(const World& world, const std::vector<RdmaDevice>& devices);
Check CheckGpuDirect(const World& world);
Check CheckShmSocket(const World& world);
Check CheckPorts(const World& world);

// All of them, in a fixed order.
std::vector<Check> Examine(const World& world, const Wants& wants);
// The worst of them.
Health WorstOf(const std::vector<Check>& checks);

std::string ForPeople(const std::vector<Check>& checks);  // at most 100 columns, but for long words
std::string ForPrograms(const std::vector<Check>& checks);  // JSON

}  // namespace oasiskv::oasisctl
