// oasisctl doctor: the command line around the checks.
#include <cstdio>
#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
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

// Bytes, or a number with KiB, MiB, GiB or TiB, as the daemon reads them; at most 2^60, so that
// sums of sizes fit.
absl::StatusOr<uint64_t> ReadSize(const char* flag, const std::string& text) {
  absl::string_view digits = text;
  int shift = 0;
  if (absl::ConsumeSuffix(&digits, "KiB")) {
    shift = 10;
  } else if (absl::ConsumeSuffix(&digits, "MiB")) {
    shift = 20;
  } else if (absl::ConsumeSuffix(&digits, "GiB")) {
    shift = 30;
  } else if (absl::ConsumeSuffix(&digits, "TiB")) {
    shift = 40;
  }
  uint64_t number = 0;
  if (!absl::SimpleAtoi(digits, &number) || number == 0 || number > (uint64_t{1} << 60) >> shift) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        absl::StrCat("--", flag, "=", text,
                     " is no size; write bytes or a number with KiB, MiB, GiB or TiB"));
  }
  return number << shift;
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
                     absl::StrCat("--huge_pages=", huge, "; allowed are off, prefer and require"));
  }
  OASISKV_ASSIGN_OR_RETURN(wants.numa_node, NumberOrNone(arguments, "numa_node"));
  wants.verbs.device = arguments.Get("verbs_device");
  OASISKV_ASSIGN_OR_RETURN(const uint64_t port, arguments.Number("verbs_port", 0));
  if (port > 255) {
    return MakeError(ErrorCode::kInvalidArgument,
                     absl::StrCat("--verbs_port=", port, "; ports are 1 to 255, 0: any"));
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
  Command out;
  out.name = "doctor";
  out.help =
      "What this machine offers a daemon, and what to mend; asks no daemon. Exit code 5: a "
      "check failed.";
  out.flags = {
      {"pool_bytes", "SIZE", "the pool that is to fit, as the daemon's flag; 1GiB"},
      {"huge_pages", "off|prefer|require", "as the daemon's flag; prefer"},
      {"numa_node", "N", "as the daemon's flag; -1, none"},
      {"verbs_device", "NAME", "RDMA device to use; the first with an active port"},
      {"verbs_port", "N", "its port; 0, the first active one"},
      {"verbs_gid_index", "N", "its GID; -1, chosen"},
      {"json", "", "JSON, sizes in bytes"},
  };
  out.run = Run;
  return out;
}

}  // namespace oasiskv::oasisctl
