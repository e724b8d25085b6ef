// All options of the daemon, in one struct.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/address.h"
#include "common/clock.h"
#include "common/log.h"
#include "server/core/kv_core.h"

namespace oasiskv::server {

// Thread contract: a plain value; constant once the daemon has it.
//
// Each field is one flag of the same name (server/options/options.cc has defaults and help).
struct Options {
  Address control_address{"127.0.0.1", 7400};                           // gRPC; port 0: any
  std::optional<Address> metrics_address = Address{"127.0.0.1", 7401};  // /metrics; nothing: off
  bool serve_shm = true;                                                // --fabrics
  bool serve_ucx = true;
  bool serve_verbs = false;
  std::string shm_socket;                  // empty: DefaultShmSocket
  std::vector<uint32_t> shm_allowed_uids;  // besides the daemon's own user and root
  int64_t shm_allowed_gid = -1;            // -1: none
  Address ucx_address{"127.0.0.1", 7402};
  std::string verbs_device;                          // empty: the first with an active port
  uint32_t verbs_port = 0;                           // 0: the device's first active one
  int64_t verbs_gid_index = -1;                      // -1: chosen
  Duration fence_timeout = std::chrono::seconds(5);  // of a revoked writer over verbs
  CoreOptions core;
  uint32_t max_attach_waiters = 4096;  // Attach calls that wait for a seal at one time
  Duration drain_timeout = std::chrono::seconds(5);
  LogLevel log_level = LogLevel::kInfo;
  std::string ready_file;  // empty: none
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

// The path of the shm socket when --shm_socket is empty: oasiskvd-<control port>.sock in the first
// of /run/oasiskv, $XDG_RUNTIME_DIR and /tmp that the daemon may write to. Clients get the path from
// Describe.
std::string DefaultShmSocket(uint16_t control_port);

}  // namespace oasiskv::server
