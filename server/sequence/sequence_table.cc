#include "server/sequence/sequence_table.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "oasiskv/error.h"

namespace oasiskv::server {

absl::Status SequenceTable::CheckInsert(const std::string& tenant, const std::string& name) const {
  if (live_.contains(Key(tenant, name))) {
    return MakeError(ErrorCode::kAlreadyExists,
                     absl::StrFormat("a live sequence \"%s\" of tenant \"%s\" exists; release or "
                                     "abort it first, or choose another name",
                                     name, tenant));
  }
  if (by_id_.size() >= max_sequences_) {
    return MakeError(ErrorCode::kCapacity,
                     absl::StrFormat("%d sequences are held, --max_sequences=%d; release some or "
                                     "raise it",
                                     by_id_.size(), max_sequences_));
  }
  return absl::OkStatus();
}

Sequence& SequenceTable::Insert(std::shared_ptr<SequenceBody> body) {
  body->id = SequenceId(next_id_++);
  auto owned = std::make_unique<Sequence>(std::move(body));
  Sequence& sequence = *owned;
  live_[Key(sequence.body->identity.tenant, sequence.body->name)] = &sequence;
  by_id_.emplace(sequence.body->id, std::move(owned));
  return sequence;
}

Sequence* SequenceTable::FindLive(const std::string& tenant, const std::string& name) const {
  const auto it = live_.find(Key(tenant, name));
  return it == live_.end() ? nullptr : it->second;
}

std::vector<Sequence*> SequenceTable::FindReleased(const std::string& tenant,
                                                   const std::string& name) const {
  const auto it = released_.find(Key(tenant, name));
  return it == released_.end() ? std::vector<Sequence*>() : it->second;
}

void SequenceTable::SetUnattended(Sequence& sequence, Duration served) {
  SetAttended(sequence);
  sequence.unattended_since = served;
  unattended_.emplace(served, sequence.body->id);
}

void SequenceTable::SetAttended(Sequence& sequence) {
  if (!sequence.unattended_since) return;
  unattended_.erase({*sequence.unattended_since, sequence.body->id});
  sequence.unattended_since.reset();
}

std::vector<Sequence*> SequenceTable::UnattendedSince(Duration served, size_t limit) const {
  std::vector<Sequence*> out;
  for (const auto& [since, id] : unattended_) {
    if (since > served || out.size() == limit) break;
    out.push_back(by_id_.at(id).get());
  }
  return out;
}

void SequenceTable::MarkReleased(Sequence& sequence) {
  SetAttended(sequence);  // nothing is waited for any more
  const Key key(sequence.body->identity.tenant, sequence.body->name);
  live_.erase(key);
  released_[key].push_back(&sequence);
}

void SequenceTable::Erase(Sequence& sequence) {
  SetAttended(sequence);
  const Key key(sequence.body->identity.tenant, sequence.body->name);
  if (const auto it = live_.find(key); it != live_.end() && it->second == &sequence) {
    live_.erase(it);
  }
  if (const auto it = released_.find(key); it != released_.end()) {
    std::erase(it->second, &sequence);
    if (it->second.empty()) released_.erase(it);
  }
  Refund(sequence, sequence.budget_bytes);
  const SequenceId id = sequence.body->id;
  by_id_.erase(id);
}

absl::Status SequenceTable::Charge(Sequence& sequence, uint64_t bytes) {
  if (bytes > max_blobs_bytes_ - budget_used_) {
    return MakeError(ErrorCode::kCapacity,
                     absl::StrFormat("%d bytes of blob, first top-K and checksums asked, %d of "
                                     "--max_blobs_bytes=%d are free; release sequences or raise it",
                                     bytes, max_blobs_bytes_ - budget_used_, max_blobs_bytes_));
  }
  budget_used_ += bytes;
  sequence.budget_bytes += bytes;
  return absl::OkStatus();
}

void SequenceTable::Refund(Sequence& sequence, uint64_t bytes) {
  budget_used_ -= bytes;
  sequence.budget_bytes -= bytes;
}

}  // namespace oasiskv::server
