// The data plane's questions: may these bytes be touched, and is a writer done.
#include <utility>

#include "absl/strings/str_format.h"
#include "common/pause_point.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"
#include "server/core/kv_core.h"
#include "server/lease/range_check.h"

namespace oasiskv::server {
namespace {

absl::Status CheckCommitted(const Sequence& sequence, uint32_t block, const LayerSpan& span,
                            fabric::Access access, size_t index) {
  if (!span.any() || sequence.Complete(block)) return absl::OkStatus();
  if (access == fabric::Access::kRead) {
    // A block that seal has given back is past the end of what was ever committed.
    const std::optional<uint32_t> layer =
        block < sequence.blocks ? sequence.committed.FirstMissing(block, span.first, span.last)
                                : span.first;
    if (!layer) return absl::OkStatus();
    return MakeError(ErrorCode::kNotCommitted,
                     absl::StrFormat("range %d: layer %d of block %d of \"%s\" is not committed",
                                     index, *layer, block, sequence.body->name));
  }
  const std::optional<uint32_t> layer =
      sequence.committed.FirstCommitted(block, span.first, span.last);
  if (!layer) return absl::OkStatus();
  return MakeError(
      ErrorCode::kWrongState,
      absl::StrFormat("range %d: layer %d of block %d of \"%s\" is committed: no write", index,
                      *layer, block, sequence.body->name));
}

}  // namespace

absl::StatusOr<fabric::PinnedRanges> KvCore::Authorize(
    GrantId grant, Epoch epoch, fabric::Access access,
    std::span<const fabric::RemoteRange> ranges) {
  absl::StatusOr<fabric::PinnedRanges> result;
  {
    MutexLock lock(mutex_);
    result = AuthorizeLocked(grant, epoch, access, ranges);
    if (!result.ok()) return Refused(result.status());
  }
  // The grant may be revoked from here on; the pin keeps the frames.
  OASISKV_PAUSE_POINT("lease.authorize.pinned");
  return result;
}

absl::StatusOr<fabric::PinnedRanges> KvCore::AuthorizeLocked(
    GrantId id, Epoch epoch, fabric::Access access, std::span<const fabric::RemoteRange> ranges) {
  OASISKV_ASSIGN_OR_RETURN(Grant * grant, grants_->Find(id, epoch));
  if (grant->access != access) {
    return MakeError(ErrorCode::kPermissionDenied,
                     absl::StrFormat("grant %x is a %s's: no %s", id.value(),
                                     grant->writer() ? "writer" : "reader",
                                     access == fabric::Access::kRead ? "read" : "write"));
  }
  const Sequence& sequence = *grant->sequence;
  if (grant->writer() && grant->fenced && grant->connection != ConnectionId()) {
    return MakeError(ErrorCode::kWrongState,
                     absl::StrFormat("the writer of \"%s\" has fenced its grant: no write",
                                     sequence.body->name));
  }
  const RangeChecker checker(sequence.body->geometry, grant->frames, grant->first_head,
                             grant->head_count);
  fabric::PinnedRanges out;
  out.memory.reserve(ranges.size());
  for (size_t i = 0; i < ranges.size(); ++i) {
    const fabric::RemoteRange& range = ranges[i];
    TouchedLayers touched;
    OASISKV_RETURN_IF_ERROR(checker.Check(range, i, touched));
    OASISKV_RETURN_IF_ERROR(CheckCommitted(sequence, range.block, touched.entries, access, i));
    OASISKV_RETURN_IF_ERROR(CheckCommitted(sequence, range.block, touched.summaries, access, i));
    out.memory.emplace_back(allocator_.Data(sequence.body->frames[range.block]) + range.offset,
                            range.length);
  }
  grants_->Pin(*grant);
  out.pin =
      std::shared_ptr<const void>(static_cast<const void*>(grant), [this, grant](const void*) {
        MutexLock lock(mutex_);
        grants_->Unpin(*grant);
      });
  return out;
}

void KvCore::Written(GrantId grant, Epoch epoch, std::span<const fabric::RemoteRange> ranges) {
  MutexLock lock(mutex_);
  const absl::StatusOr<Grant*> found = grants_->Find(grant, epoch);
  if (!found.ok()) return;  // ended meanwhile: nobody will commit it
  Sequence& sequence = *(*found)->sequence;
  if (!sequence.sees_writes) return;
  for (const fabric::RemoteRange& range : ranges) {
    sequence.written.Add(range.block, range.offset, range.offset + range.length);
  }
}

uint64_t KvCore::GrantWord(GrantId grant) const {
  MutexLock lock(mutex_);
  return grants_->Word(grant);
}

void KvCore::WriterFenced(ConnectionId connection, GrantId grant) {
  MutexLock lock(mutex_);
  grants_->Fenced(connection, grant);
}

void KvCore::ConnectionOpened(ConnectionId connection) {
  MutexLock lock(mutex_);
  grants_->ConnectionOpened(connection);
}

void KvCore::ConnectionClosed(ConnectionId connection) {
  MutexLock lock(mutex_);
  grants_->ConnectionClosed(connection);
}

}  // namespace oasiskv::server
