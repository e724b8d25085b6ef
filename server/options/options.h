// All options of the daemon, in one struct.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/address.h"
#include "common/clock.h"
#include "common/fabric/registry.h"
#include "common/log.h"
#include "server/core/kv_core.h"

namespace oasiskv::server {

// Thread contract: a plain value; constant once the daemon has it.
//
// Each field is one flag of the same name; its default is that of the flag.
struct Options {
  Address control_address{"127.0.0.1", 7400};                           // gRPC; port 0: any
  std::optional<Address> metrics_address = Address{"127.0.0.1", 7401};  // /metrics; nothing: off
  std::vector<std::string> fabrics = {"shm", "ucx"};  // names of fabric::Fabrics()
  fabric::FabricOptions fabric;                       // --shm_socket is fabric.shm.socket_path, ...
  Duration fence_timeout = std::chrono::seconds(5);   // of a revoked writer over verbs
  CoreOptions core;
  uint32_t max_attach_waiters = 4096;  // Attach calls that wait for a seal at one time
  Duration drain_timeout = std::chrono::minutes(5);
  LogLevel log_level = LogLevel::kInfo;
  std::string ready_file;     // empty: none
  uint32_t lose_answers = 0;  // percent of the answers of KvMemory that are lost, for tests
  uint32_t lose_answers_seed = 1;
};

// What the command line asks of the process.
enum class Action { kServe, kPrintHelp, kPrintOptions, kPrintVersion };

struct CommandLine {
  Action action = Action::kServe;
  Options options;
  std::string text;  // what to print for every action but kServe
};

// Reads `args` (without the program's name) over the flags' defaults, and checks all options once.
// What an earlier call left in the process's flags does not count. One thread at a time. Errors:
// INVALID_ARGUMENT naming the flag, its value and what is allowed.
absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& args);

}  // namespace oasiskv::server
