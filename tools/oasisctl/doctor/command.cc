// oasisctl doctor: the command line around the checks.
#include <cstdio>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/byte_size.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"
#include "tools/oasisctl/commands.h"
#include "tools/oasisctl/connection.h"
#include "tools/oasisctl/doctor/check.h"

namespace oasiskv::oasisctl {
namespace {

absl::StatusOr<int64_t> NumberOrNone(const Arguments& arguments, const char* flag) {
  if (!arguments.Has(flag) || arguments.Get(flag) == "-1") return -1;
  OASISKV_ASSIGN_OR_RETURN(const uint64_t value, arguments.Number(flag, 0));
  if (value > std::numeric_limits<int32_t>::max()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrCat("--", flag, "=", value, " is too large"));
  }
  return static_cast<int64_t>(value);
}

// At most 2^60, so that sums of sizes fit.
absl::StatusOr<uint64_t> ReadSize(const char* flag, const std::string& text) {
  ByteSize size;
  std::string error;
  if (AbslParseFlag(text, &size, &error) && (size.bytes == 0 || size.bytes > uint64_t{1} << 60)) {
    error = "must be at least 1 byte and at most 1048576TiB";
  }
  if (error.empty()) return size.bytes;
  return MakeError(ErrorCode::kInvalidArgument, absl::StrCat("--", flag, "=", text, ": ", error));
}

absl::StatusOr<Wants> ReadWants(const Arguments& arguments) {
  Wants wants;
  if (arguments.Has("pool_bytes")) {
    OASISKV_ASSIGN_OR_RETURN(wants.pool_bytes, ReadSize("pool_bytes", arguments.Get("pool_bytes")));
  }
  const std::string huge = arguments.Get("huge_pages", "prefer");
  if (huge == "off") {
    wants.huge_pages = HugePages::kOff;
  } else if (huge == "require") {
    wants.huge_pages = HugePages::kRequire;
  } else if (huge != "prefer") {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrCat("--huge_pages=", huge, "; it must be off, prefer or require"));
  }
  OASISKV_ASSIGN_OR_RETURN(wants.numa_node, NumberOrNone(arguments, "numa_node"));
  wants.verbs.device = arguments.Get("verbs_device");
  OASISKV_ASSIGN_OR_RETURN(const uint64_t port, arguments.Number("verbs_port", 0));
  if (port > 255) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrCat("--verbs_port=", port, "; it must be 1 to 255, or 0 for any"));
  }
  wants.verbs.port = static_cast<uint32_t>(port);
  OASISKV_ASSIGN_OR_RETURN(wants.verbs.gid_index, NumberOrNone(arguments, "verbs_gid_index"));
  return wants;
}

int Run(const Arguments& arguments) {
  const auto wants = ReadWants(arguments);
  if (!wants.ok()) return Usage(wants.status());
  const auto checks = Examine(World::OfThisMachine(wants->verbs), *wants);
  std::fputs((arguments.Has("json") ? ForPrograms(checks) : ForPeople(checks)).c_str(), stdout);
  return WorstOf(checks) == Health::kFail ? kExitUnfit : kExitOk;
}

}  // namespace

Command DoctorCommand() {
  return {
      .name = "doctor",
      .help =
          "Checks whether this machine can run a daemon, and says how to fix what is wrong. "
          "Needs no daemon. Exit code 5: a check failed.",
      .flags = {{"pool_bytes", "SIZE", "The daemon's --pool_bytes. Default: 1GiB."},
                {"huge_pages", "off|prefer|require", "The daemon's --huge_pages. Default: prefer."},
                {"numa_node", "N", "The daemon's --numa_node. Default: -1, none."},
                {"verbs_device", "NAME",
                 "RDMA device to use. Default: the first with an active port."},
                {"verbs_port", "N", "Port of that device. Default: 0, its first active port."},
                {"verbs_gid_index", "N",
                 "Entry of that port's GID table. Default: -1, chosen automatically."},
                {"json", "", "Print JSON; sizes are in bytes."}},
      .run = Run};
}

}  // namespace oasiskv::oasisctl
