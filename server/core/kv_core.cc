#include "server/core/kv_core.h"

#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"
#include "server/core/core_impl.h"
#include "server/core/limits.h"

namespace oasiskv::server {
namespace {

int64_t ToMs(Duration d) { return d / std::chrono::milliseconds(1); }

absl::Status CheckOptions(const CoreOptions& o) {
  auto bad = [](std::string text) { return MakeError(ErrorCode::kInvalidArgument, text); };
  if (o.max_grants == 0 || o.max_grants > kMostGrants) {
    return bad(
        absl::StrFormat("--max_grants=%d must be between 1 and %d", o.max_grants, kMostGrants));
  }
  if (o.max_sequences == 0 || o.max_sequences > kMostSequences) {
    return bad(absl::StrFormat("--max_sequences=%d must be between 1 and %d", o.max_sequences,
                               kMostSequences));
  }
  if (o.max_blocks_per_sequence == 0 || o.max_blocks_per_sequence > kMostBlocks) {
    return bad(absl::StrFormat("--max_blocks_per_sequence=%d must be between 1 and %d",
                               o.max_blocks_per_sequence, kMostBlocks));
  }
  if (o.max_blob_bytes > o.max_blobs_bytes) {
    return bad(absl::StrFormat("--max_blob_bytes=%d exceeds --max_blobs_bytes=%d", o.max_blob_bytes,
                               o.max_blobs_bytes));
  }
  if (o.default_lease <= Duration(0) || o.default_lease > o.max_lease) {
    return bad(
        absl::StrFormat("--default_lease=%d ms must be above 0 and at most --max_lease=%d "
                        "ms",
                        ToMs(o.default_lease), ToMs(o.max_lease)));
  }
  if (o.max_lease > std::chrono::hours(24 * 365)) {
    return bad(absl::StrFormat("--max_lease=%d ms is more than a year", ToMs(o.max_lease)));
  }
  if (o.unattended_ttl < Duration(0) || o.unattended_ttl > std::chrono::hours(24 * 365)) {
    return bad(absl::StrFormat("--unattended_ttl=%d ms must be 0 (never) or at most a year",
                               ToMs(o.unattended_ttl)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<KvCore>> KvCore::Create(const CoreOptions& options,
                                                       const Clock& clock) {
  OASISKV_RETURN_IF_ERROR(CheckOptions(options));
  OASISKV_ASSIGN_OR_RETURN(std::unique_ptr<Pool> pool,
                           Pool::Create({.pool_bytes = options.pool_bytes,
                                         .arena_bytes = options.arena_bytes,
                                         .slab_bytes = options.slab_bytes,
                                         .huge_pages = options.huge_pages,
                                         .numa_node = options.numa_node,
                                         .touch_threads = options.touch_threads}));
  auto core = std::make_unique<CoreImpl>(options, clock, std::move(pool));
  OASISKV_RETURN_IF_ERROR(core->Init());
  return core;
}

}  // namespace oasiskv::server
