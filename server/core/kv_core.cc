#include "server/core/kv_core.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "common/log.h"
#include "common/pause_point.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"
#include "server/core/limits.h"

namespace oasiskv::server {
namespace {

constexpr size_t kPortion = 1024;  // grants or sequences ended under one hold of the mutex

int64_t ToMs(Duration d) { return d / std::chrono::milliseconds(1); }

absl::Status CheckOptions(const CoreOptions& o) {
  auto bad = [](const std::string& text) { return MakeError(ErrorCode::kInvalidArgument, text); };
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

absl::Status CheckText(const char* field, const std::string& text, size_t least) {
  if (text.size() >= least && text.size() <= kMaxNameBytes) return absl::OkStatus();
  return MakeError(ErrorCode::kInvalidArgument,
                   absl::StrFormat("%s has %d bytes; it must have between %d and %d", field,
                                   text.size(), least, kMaxNameBytes));
}

}  // namespace

absl::Status CheckNames(const std::string& name, const Identity& identity, size_t least) {
  OASISKV_RETURN_IF_ERROR(CheckText("name", name, least));
  OASISKV_RETURN_IF_ERROR(CheckText("identity.model", identity.model, least));
  OASISKV_RETURN_IF_ERROR(CheckText("identity.revision", identity.revision, 0));
  return CheckText("identity.tenant", identity.tenant, 0);
}

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
  std::unique_ptr<KvCore> core(new KvCore(options, clock, std::move(pool)));
  OASISKV_RETURN_IF_ERROR(core->Init());
  return core;
}

KvCore::KvCore(const CoreOptions& options, const Clock& clock, std::unique_ptr<Pool> pool)
    : options_(options),
      clock_(clock),
      incarnation_(RandomBits() | 1),
      pool_(std::move(pool)),
      allocator_(*pool_),
      sequences_(options.max_sequences, options.max_blobs_bytes),
      served_(clock.Now(), kMaxTick) {}

absl::Status KvCore::Init() {
  MutexLock lock(mutex_);
  OASISKV_ASSIGN_OR_RETURN(grants_, GrantTable::Create(options_.max_grants, allocator_));
  return absl::OkStatus();
}

absl::StatusOr<Duration> KvCore::LeaseOf(Duration asked) const {
  if (asked == Duration(0)) return options_.default_lease;
  if (asked > Duration(0) && asked <= options_.max_lease) return asked;
  return MakeError(ErrorCode::kInvalidArgument,
                   absl::StrFormat("a lease of %d ms asked; it must be above 0 and at most "
                                   "--max_lease=%d ms",
                                   asked / std::chrono::milliseconds(1),
                                   options_.max_lease / std::chrono::milliseconds(1)));
}

std::vector<FrameAddress> KvCore::Addresses(std::span<const Frame> frames) const {
  std::vector<FrameAddress> out;
  out.reserve(frames.size());
  for (Frame frame : frames) out.push_back(allocator_.Address(frame));
  return out;
}

wire::Grant KvCore::Describe(const Grant& grant, Duration lease) const {
  return {grant.id, grant.epoch, grant.slot, lease, Addresses(grant.held())};
}

uint64_t KvCore::ChecksumBytes(const Sequence& sequence, uint32_t blocks) const {
  if (!sequence.with_checksums) return 0;
  const Geometry& g = sequence.body->geometry;
  return uint64_t{blocks} * g.layers * g.kv_heads * sizeof(uint32_t);
}

absl::Status KvCore::CheckAttachable(const Geometry& geometry, bool checksums, uint32_t blocks,
                                     uint64_t seal_bytes) const {
  const uint64_t per_block =
      sizeof(uint64_t) +
      (checksums ? uint64_t{geometry.layers} * geometry.kv_heads * sizeof(uint32_t) : 0);
  const uint64_t bytes = blocks * per_block + seal_bytes;
  if (bytes <= options_.max_attach_bytes) return absl::OkStatus();
  return MakeError(
      ErrorCode::kCapacity,
      absl::StrFormat("an attach answer with %d blocks of %d bytes each (frame address and "
                      "checksums) and %d bytes of first top-K and blob would be %d bytes, above "
                      "the limit of %d; do without checksums or use several sequences",
                      blocks, per_block, seal_bytes, bytes, options_.max_attach_bytes));
}

absl::Status KvCore::Refused(absl::Status status) {
  switch (ErrorCodeOf(status)) {
    case ErrorCode::kStale:
      ++counters_.stale_requests;
      break;
    case ErrorCode::kLeaseExpired:
      ++counters_.expired_requests;
      break;
    case ErrorCode::kCapacity:
      ++counters_.capacity_refusals;
      break;
    default:
      break;
  }
  return status;
}

void KvCore::EndGrant(Grant& grant, GrantEnd end, Ending& ending) {
  Sequence& sequence = *grant.sequence;
  grants_->Revoke(grant, end);
  ending.grants.push_back(&grant);
  switch (end) {
    case GrantEnd::kReleased:
    case GrantEnd::kSealed:
      ++counters_.grants_released;
      break;
    case GrantEnd::kExpired:
      ++counters_.grants_expired;
      break;
    case GrantEnd::kAborted:
      ++counters_.grants_revoked;
      break;
  }
  if (grant.writer()) {
    sequence.writer = GrantId();
  } else {
    --sequence.readers;
  }
  if (sequence.state == SequenceState::kSealed && sequence.readers == 0 &&
      options_.unattended_ttl > Duration(0)) {
    sequences_.SetUnattended(sequence, served_.At(clock_.Now()));
  }
  if (sequence.state == SequenceState::kReleased && sequence.readers == 0) {
    sequences_.Erase(sequence);
  }
}

uint32_t KvCore::AbortSequence(Sequence& sequence, Ending& ending) {
  const bool holds_frames = sequence.state != SequenceState::kReleased;
  sequence.state = FindRule(sequence.state, SequenceOp::kAbort).to;
  uint32_t revoked = 0;
  for (Grant* grant : grants_->OfSequence(sequence.body->id)) {
    EndGrant(*grant, GrantEnd::kAborted, ending);
    ++revoked;
  }
  if (holds_frames) ending.frames.push_back({sequence.body, 0, sequence.blocks});
  sequences_.Erase(sequence);
  return revoked;
}

void KvCore::LoseGrant(Grant& grant, GrantEnd end, Ending& ending) {
  Sequence& sequence = *grant.sequence;
  const bool writer = grant.writer();
  EndGrant(grant, end, ending);
  if (!writer) return;
  // Nobody can seal it any more.
  if (lost_writers_.Pass()) {
    LogInfo("sequence", absl::StrFormat("\"%s\" is thrown away: its writer's grant %s before seal "
                                        "(%d more such lines held back)",
                                        sequence.body->name,
                                        end == GrantEnd::kExpired ? "expired" : "was given back",
                                        lost_writers_.suppressed()));
  }
  ++(end == GrantEnd::kExpired ? counters_.sequences_expired : counters_.sequences_aborted);
  AbortSequence(sequence, ending);
}

void KvCore::ReleaseSequence(Sequence& sequence, Ending& ending) {
  ending.frames.push_back({sequence.body, 0, sequence.blocks});
  if (sequence.readers == 0) {
    sequences_.Erase(sequence);
  } else {
    sequences_.MarkReleased(sequence);
  }
}

void KvCore::ReleaseUnattended(Sequence& sequence, Ending& ending) {
  const std::string& name = sequence.body->name;
  if (!Advance(sequence.state, SequenceOp::kUnattended, name).ok()) return;
  if (unattended_.Pass()) {
    constexpr std::chrono::milliseconds kMs(1);
    LogInfo("sequence",
            absl::StrFormat("\"%s\" of tenant \"%s\" is released: nobody had a grant for "
                            "--unattended_ttl=%d ms, opened %d ms ago (%d more such lines held "
                            "back)",
                            name, sequence.body->identity.tenant, options_.unattended_ttl / kMs,
                            (clock_.Now() - sequence.opened) / kMs, unattended_.suppressed()));
  }
  ++counters_.sequences_unattended;
  ReleaseSequence(sequence, ending);
}

void KvCore::Finish(const Ending& ending) {
  if (ending.grants.empty() && ending.frames.empty()) return;
  // Rule 1 of server/lease/README.md: the words have changed; every frame is still held.
  OASISKV_PAUSE_POINT("lease.revoke.word_changed");
  MutexLock lock(mutex_);
  for (Grant* grant : ending.grants) grants_->LetGo(*grant, served_.At(clock_.Now()));
  for (const Ending::Frames& f : ending.frames) {
    allocator_.Unref(std::span(f.body->frames).subspan(f.from, f.to - f.from));
  }
}

void KvCore::SetDraining(bool draining) {
  MutexLock lock(mutex_);
  draining_ = draining;
}

bool KvCore::draining() const {
  MutexLock lock(mutex_);
  return draining_;
}

void KvCore::Tick(MonotonicTime now) {
  {
    MutexLock lock(mutex_);
    served_.Tick(now);
  }
  TickGrants();
  TickSequences();
}

std::vector<ConnectionId> KvCore::UnfencedWriters(Duration patience) const {
  MutexLock lock(mutex_);
  return grants_->UnfencedSince(served_.served() - patience);
}

void KvCore::TickGrants() {
  while (true) {
    Ending ending;
    {
      MutexLock lock(mutex_);
      for (Grant* grant : grants_->Expired(served_.served(), kPortion)) {
        // An earlier one of this portion may have taken it along.
        if (grant->phase == Grant::Phase::kLive) LoseGrant(*grant, GrantEnd::kExpired, ending);
      }
    }
    if (ending.grants.empty()) return;
    Finish(ending);
  }
}

void KvCore::TickSequences() {
  if (options_.unattended_ttl == Duration(0)) return;
  while (true) {
    Ending ending;
    {
      MutexLock lock(mutex_);
      const Duration since = served_.served() - options_.unattended_ttl;
      for (Sequence* sequence : sequences_.UnattendedSince(since, kPortion)) {
        ReleaseUnattended(*sequence, ending);
      }
    }
    if (ending.frames.empty()) return;
    Finish(ending);
  }
}

}  // namespace oasiskv::server
