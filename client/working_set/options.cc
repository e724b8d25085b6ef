#include "client/working_set/options.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>

#include "absl/strings/str_format.h"
#include "client/selection/float8.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv {

absl::Status CheckOptions(const WorkingSetOptions& options) {
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
  if (options.ranked_blocks > options.resident_blocks) {
    return invalid(absl::StrFormat(
        "ranked_blocks is %d; it must be at most resident_blocks=%d (0: equal to it)",
        options.ranked_blocks, options.resident_blocks));
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
  if (options.summaries == SummaryType::kFloat8 &&
      options.geometry.head_dim % kFloat8HeadDim != 0) {
    return invalid(
        absl::StrFormat("summaries is kFloat8 with head_dim %d, which must be a "
                        "multiple of %d then; kAsKeys takes any",
                        options.geometry.head_dim, kFloat8HeadDim));
  }
  if (options.late_deadline <= std::chrono::nanoseconds(0) ||
      options.late_deadline > std::chrono::hours(1)) {
    return invalid(absl::StrFormat("late_deadline is %d ns; it must be above 0 and at most 1 h",
                                   options.late_deadline.count()));
  }
  return absl::OkStatus();
}

uint32_t RankedBlocks(const WorkingSetOptions& options) {
  return options.ranked_blocks != 0 ? options.ranked_blocks : options.resident_blocks;
}

uint32_t FetchCap(const WorkingSetOptions& options) {
  // The small addend keeps 0.29 x 100 at 29, which in binary comes out below it.
  return static_cast<uint32_t>(std::floor(options.fetch_ratio * RankedBlocks(options) + 1e-9));
}

absl::Status CheckSource(const WorkingSetOptions& options, const EntrySource* source) {
  if (source == nullptr) {
    return MakeError(ErrorCode::kInvalidArgument, "Admit: the source is null");
  }
  OASISKV_RETURN_IF_ERROR(source->geometry().CheckSame(options.geometry));
  const uint64_t tokens = source->token_count();
  const uint64_t fits = uint64_t{options.max_blocks} * options.geometry.block_tokens;
  if (tokens > fits) {
    return MakeError(ErrorCode::kCapacity,
                     absl::StrFormat("Admit: the sequence has %d tokens; max_blocks %d holds %d",
                                     tokens, options.max_blocks, fits));
  }
  return absl::OkStatus();
}

EntrySource::TimePoint AdmissionDeadline(const WorkingSetOptions& options) {
  return std::chrono::steady_clock::now() +
         std::max<std::chrono::nanoseconds>(options.late_deadline, std::chrono::seconds(30));
}

void AddStats(const WorkingSetStats& from, WorkingSetStats* to) {
  to->steps += from.steps;
  to->predicted += from.predicted;
  to->hit += from.hit;
  to->admitted += from.admitted;
  to->promoted += from.promoted;
  to->refused_by_cap += from.refused_by_cap;
  to->late += from.late;
  to->skipped += from.skipped;
  to->degraded += from.degraded;
  to->demanded += from.demanded;
  to->bytes_moved += from.bytes_moved;
  to->bytes_used += from.bytes_used;
  to->admission_bytes += from.admission_bytes;
  to->agreement_samples += from.agreement_samples;
  to->agreement_sum += from.agreement_sum;
}

}  // namespace oasiskv
