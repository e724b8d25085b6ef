// Checks options and makes the backend.
#include "oasiskv/working_set.h"

#include <chrono>
#include <cmath>
#include <cstdint>

#include "absl/strings/str_format.h"
#include "client/working_set/cpu_working_set.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv {
namespace {

absl::Status Check(const WorkingSetOptions& options) {
  OASISKV_RETURN_IF_ERROR(options.geometry.Validate());
  const auto invalid = [](const auto& text) {
    return MakeError(ErrorCode::kInvalidArgument, "WorkingSetOptions." + text);
  };
  const struct {
    const char* field;
    uint64_t value, high;
  } ranges[] = {{"query_heads", options.query_heads, 65536},
                {"resident_blocks", options.resident_blocks, 65536},
                {"max_requests", options.max_requests, 65536},
                {"max_blocks", options.max_blocks, INT32_MAX - 1}};
  for (const auto& range : ranges) {
    if (range.value >= 1 && range.value <= range.high) continue;
    return invalid(absl::StrFormat("%s is %d; it must be between 1 and %d", range.field,
                                   range.value, range.high));
  }
  if (options.query_heads % options.geometry.kv_heads != 0) {
    return invalid(absl::StrFormat("query_heads is %d; it must be a multiple of the %d KV heads",
                                   options.query_heads, options.geometry.kv_heads));
  }
  if (!(options.fetch_ratio >= 0.0 && options.fetch_ratio <= 1.0)) {
    return invalid(absl::StrFormat("fetch_ratio is %g; it must be between 0 and 1 (1: no cap)",
                                   options.fetch_ratio));
  }
  if (!(options.bound_weight >= 0.0 && options.bound_weight <= 1.0)) {
    return invalid(absl::StrFormat("bound_weight is %g; it must be between 0 and 1 (1: the bound)",
                                   options.bound_weight));
  }
  if (options.late_deadline <= std::chrono::nanoseconds(0) ||
      options.late_deadline > std::chrono::hours(1)) {
    return invalid(absl::StrFormat("late_deadline is %d ns; it must be above 0 and at most 1 h",
                                   options.late_deadline.count()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<WorkingSet>> WorkingSet::Create(const WorkingSetOptions& options) {
  OASISKV_RETURN_IF_ERROR(Check(options));
  return CpuWorkingSet::Create(options);
}

}  // namespace oasiskv
