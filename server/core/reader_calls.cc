// Attach, CheckSealed, Renew, Release and Abort.
#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"
#include "server/core/kv_core.h"

namespace oasiskv::server {
namespace {

// The parts of a list that are handled under one hold of the mutex each.
template <typename T>
std::vector<std::span<const T>> Portions(std::span<const T> all) {
  constexpr size_t kPortion = 1024;
  std::vector<std::span<const T>> out;
  for (size_t at = 0; at < all.size(); at += kPortion) {
    out.push_back(all.subspan(at, std::min(kPortion, all.size() - at)));
  }
  return out;
}

absl::Status NoSequence(const std::string& name, const Identity& identity, bool draining) {
  if (draining) {
    return MakeError(
        ErrorCode::kDraining,
        absl::StrFormat("the daemon drains and will have no sequence \"%s\"; attach on "
                        "another one",
                        name));
  }
  return MakeError(ErrorCode::kNotFound,
                   absl::StrFormat("no live sequence \"%s\" of tenant \"%s\"; recompute its KV",
                                   name, identity.tenant));
}

// Resolves head_count 0 and checks the range.
absl::Status ResolveHeads(const Geometry& g, uint32_t first, uint32_t& count) {
  if (count == 0 && first == 0) count = g.kv_heads;
  if (count > 0 && uint64_t{first} + count <= g.kv_heads) return absl::OkStatus();
  return MakeError(ErrorCode::kOutOfRange,
                   absl::StrFormat("heads [%d, %d) asked, the shard has %d (first_head 0 with "
                                   "head_count 0: all)",
                                   first, uint64_t{first} + count, g.kv_heads));
}

}  // namespace

absl::StatusOr<AttachResult> KvCore::Attach(const AttachSpec& spec) {
  OASISKV_RETURN_IF_ERROR(CheckNames(spec.name, spec.identity, 0));
  OASISKV_ASSIGN_OR_RETURN(const Duration lease, LeaseOf(spec.lease));
  AttachResult result;
  // Immutable while shared by a sealed sequence; copied when the mutex is free again.
  std::shared_ptr<const FirstTopK> first_topk;
  std::shared_ptr<const std::string> blob;
  std::shared_ptr<const std::vector<uint32_t>> checksums;
  {
    MutexLock lock(mutex_);
    Sequence* sequence = sequences_.FindLive(spec.identity.tenant, spec.name);
    if (sequence == nullptr) return NoSequence(spec.name, spec.identity, draining_);
    const SequenceBody& body = *sequence->body;
    OASISKV_RETURN_IF_ERROR(body.identity.CheckSame(spec.identity));
    OASISKV_RETURN_IF_ERROR(body.geometry.CheckSame(spec.geometry));
    uint32_t head_count = spec.head_count;
    OASISKV_RETURN_IF_ERROR(ResolveHeads(body.geometry, spec.first_head, head_count));
    OASISKV_RETURN_IF_ERROR(
        Advance(sequence->state,
                spec.require_sealed ? SequenceOp::kAttachSealed : SequenceOp::kAttach, spec.name));
    if (sequence->state == SequenceState::kOpen) {
      const size_t most = options_.max_attach_bytes / sizeof(LayerBlocks);
      std::optional<std::vector<LayerBlocks>> runs = sequence->committed.Runs(most);
      if (!runs) {
        return Refused(MakeError(
            ErrorCode::kCapacity,
            absl::StrFormat("what \"%s\" has committed so far lies in more than %d pieces, too "
                            "many for an attach answer; attach when it is sealed",
                            spec.name, most)));
      }
      result.committed = *std::move(runs);
    }
    Grant* grant = FindRepeated(spec.token, fabric::Access::kRead, spec.name, spec.identity);
    if (grant != nullptr) {
      Answer(*grant, lease);
    } else {
      if (absl::Status s = grants_->CheckRoom(); !s.ok()) return Refused(s);
      Grant want;
      want.access = fabric::Access::kRead;
      want.sequence = sequence;
      want.frames = sequence->blocks;
      want.first_head = spec.first_head;
      want.head_count = head_count;
      want.holder = spec.holder.substr(0, kMaxNameBytes);
      want.expires = served_.At(clock_.Now()) + lease;
      want.token = spec.token;
      grant = &grants_->Give(std::move(want));
      ++sequence->readers;
      sequences_.SetAttended(*sequence);
      ++counters_.attaches;
    }
    result.sequence = body.id;
    result.grant = Describe(*grant, lease);
    result.state = sequence->state;
    result.token_count = sequence->token_count;
    if (sequence->state == SequenceState::kOpen) {
      result.checksums = *sequence->checksums;  // the writer goes on changing it
    } else {
      first_topk = sequence->first_topk;
      blob = sequence->blob;
      checksums = sequence->checksums;
    }
  }
  if (first_topk != nullptr) result.first_topk = *first_topk;
  if (blob != nullptr) result.blob = *blob;
  if (checksums != nullptr) result.checksums = *checksums;
  return result;
}

absl::Status KvCore::CheckSealed(const std::string& name, const Identity& identity) const {
  OASISKV_RETURN_IF_ERROR(CheckNames(name, identity, 0));
  MutexLock lock(mutex_);
  const Sequence* sequence = sequences_.FindLive(identity.tenant, name);
  if (sequence == nullptr) return NoSequence(name, identity, draining_);
  OASISKV_RETURN_IF_ERROR(sequence->body->identity.CheckSame(identity));
  if (sequence->state == SequenceState::kSealed) return absl::OkStatus();
  return MakeError(ErrorCode::kNotSealed,
                   absl::StrFormat("sequence \"%s\" is still open; wait longer", name));
}

absl::StatusOr<RenewResult> KvCore::Renew(std::span<const GrantKey> grants, Duration lease) {
  RenewResult result;
  OASISKV_ASSIGN_OR_RETURN(result.lease, LeaseOf(lease));
  for (const auto keys : Portions(grants)) {
    MutexLock lock(mutex_);
    const Duration expires = served_.At(clock_.Now()) + result.lease;
    for (const GrantKey& key : keys) {
      absl::StatusOr<Grant*> grant = grants_->Find(key.id, key.epoch);
      if (grant.ok()) {
        grants_->Prolong(**grant, expires);
      } else {
        result.lost.push_back({key.id, static_cast<int>(ErrorCodeOf(grant.status()))});
      }
    }
  }
  MutexLock lock(mutex_);
  ++counters_.renewals;
  return result;
}

absl::Status KvCore::CheckRelease(std::span<const GrantKey> grants,
                                  std::span<const SequenceRef> sequences,
                                  const Identity& identity) {
  if (sequences.empty()) return absl::OkStatus();
  // A writer that gives up its grant here throws its sequence away, which ends it as well.
  absl::flat_hash_set<SequenceId> end_with_grant;
  for (const auto keys : Portions(grants)) {
    MutexLock lock(mutex_);
    for (const GrantKey& key : keys) {
      const absl::StatusOr<Grant*> grant = grants_->Find(key.id, key.epoch);
      if (grant.ok() && (*grant)->writer()) end_with_grant.insert((*grant)->body->id);
    }
  }
  for (const auto names : Portions(sequences)) {
    MutexLock lock(mutex_);
    for (const SequenceRef& ref : names) {
      const Sequence* sequence = FindMeant(ref, identity);
      if (sequence == nullptr || end_with_grant.contains(sequence->body->id)) continue;
      OASISKV_RETURN_IF_ERROR(sequence->body->identity.CheckSame(identity));
      SequenceState state = sequence->state;
      OASISKV_RETURN_IF_ERROR(Advance(state, SequenceOp::kRelease, ref.name));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ReleaseResult> KvCore::Release(std::span<const GrantKey> grants,
                                              std::span<const SequenceRef> sequences,
                                              const Identity& identity) {
  OASISKV_RETURN_IF_ERROR(CheckNames("", identity, 0));
  OASISKV_RETURN_IF_ERROR(CheckRelease(grants, sequences, identity));
  ReleaseResult result;
  for (const auto keys : Portions(grants)) {
    Ending ending;
    {
      MutexLock lock(mutex_);
      for (const GrantKey& key : keys) {
        absl::StatusOr<Grant*> grant = grants_->Find(key.id, key.epoch);
        if (!grant.ok()) continue;
        LoseGrant(**grant, GrantEnd::kReleased, ending);
        ++result.grants;
      }
    }
    Finish(ending);
  }
  for (const auto names : Portions(sequences)) {
    Ending ending;
    {
      MutexLock lock(mutex_);
      for (const SequenceRef& ref : names) {
        Sequence* sequence = FindMeant(ref, identity);
        // A sequence that took the name after the check is not the one that was meant.
        if (sequence == nullptr || sequence->body->identity != identity ||
            !Advance(sequence->state, SequenceOp::kRelease, ref.name).ok()) {
          continue;
        }
        ++counters_.sequences_released;
        ReleaseSequence(*sequence, ending);
        ++result.sequences;
      }
    }
    Finish(ending);
  }
  return result;
}

absl::StatusOr<uint32_t> KvCore::Abort(const SequenceRef& sequence, const Identity& identity) {
  OASISKV_RETURN_IF_ERROR(CheckNames(sequence.name, identity, 0));
  Ending ending;
  uint32_t revoked = 0;
  {
    MutexLock lock(mutex_);
    Sequence* live = FindMeant(sequence, identity);
    if (live != nullptr) OASISKV_RETURN_IF_ERROR(live->body->identity.CheckSame(identity));
    std::vector<Sequence*> gone = sequences_.FindReleased(identity.tenant, sequence.name);
    if (live != nullptr) gone.push_back(live);
    for (Sequence* one : gone) {
      const SequenceId id = one->body->id;
      if (one->body->identity != identity) continue;
      if (sequence.id != SequenceId() && sequence.id != id) continue;
      ++counters_.sequences_aborted;
      revoked += AbortSequence(*one, ending);
    }
  }
  Finish(ending);
  return revoked;
}

Sequence* KvCore::FindMeant(const SequenceRef& ref, const Identity& identity) const {
  Sequence* sequence = sequences_.FindLive(identity.tenant, ref.name);
  const bool other = sequence != nullptr && ref.id != SequenceId() && ref.id != sequence->body->id;
  return other ? nullptr : sequence;
}

void KvCore::Undeliver(GrantKey grant) {
  Ending ending;
  {
    MutexLock lock(mutex_);
    const absl::StatusOr<Grant*> found = grants_->Find(grant.id, grant.epoch);
    if (!found.ok() || --(*found)->answers > 0) return;
    if ((*found)->writer()) {
      Abandon(**found, ending);
    } else {
      LoseGrant(**found, GrantEnd::kReleased, ending);
    }
  }
  Finish(ending);
}

}  // namespace oasiskv::server
