#include "server/lease/grant_table.h"

#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::server {
namespace {

fabric::RevokeReason ReasonOf(GrantEnd end) {
  switch (end) {
    case GrantEnd::kExpired:
      return fabric::RevokeReason::kExpired;
    case GrantEnd::kAborted:
      return fabric::RevokeReason::kAborted;
    case GrantEnd::kReleased:
    case GrantEnd::kSealed:
      break;
  }
  return fabric::RevokeReason::kReleased;
}

// The top bit stays free, so that counting up from here never wraps.
uint64_t DrawFirstId() { return ((RandomBits() >> 1) & ~uint64_t{0xffffffff}) | 1; }

}  // namespace

absl::StatusOr<std::unique_ptr<GrantTable>> GrantTable::Create(uint32_t max_grants,
                                                               SlabAllocator& allocator) {
  OASISKV_ASSIGN_OR_RETURN(GrantWords words, GrantWords::Create(max_grants));
  return std::unique_ptr<GrantTable>(new GrantTable(std::move(words), max_grants, allocator));
}

GrantTable::GrantTable(GrantWords words, uint32_t max_grants, SlabAllocator& allocator)
    : words_(std::move(words)),
      max_grants_(max_grants),
      allocator_(allocator),
      first_id_(DrawFirstId()) {}

absl::Status GrantTable::CheckRoom() const {
  if (words_.slots_free() > 0) return absl::OkStatus();
  return MakeError(ErrorCode::kCapacity,
                   absl::StrFormat("all %d grants of --max_grants are given; release some or raise "
                                   "it",
                                   max_grants_));
}

Grant& GrantTable::Give(Grant spec) {
  auto owned = std::make_unique<Grant>(std::move(spec));
  Grant& grant = *owned;
  grant.id = GrantId(next_id_++);
  grant.epoch = GrantWords::DrawEpoch();
  grant.slot = *words_.TakeSlot();
  grant.fenced = grant.connection == ConnectionId();
  grant.body = grant.sequence->body;
  allocator_.Ref(grant.held());
  ++(grant.writer() ? writers_ : readers_);
  by_expiry_.emplace(grant.expires, grant.id);
  by_sequence_.emplace(grant.body->id, grant.id);
  if (!grant.fenced) by_connection_.emplace(grant.connection, grant.id);
  if (grant.token != CallToken()) by_token_[grant.token] = grant.id;
  by_id_.emplace(grant.id, std::move(owned));
  words_.Publish(grant.slot, grant.epoch);
  return grant;
}

void GrantTable::Grow(Grant& grant, uint32_t frames) {
  allocator_.Ref(std::span(grant.body->frames).subspan(grant.frames, frames - grant.frames));
  grant.frames = frames;
}

void GrantTable::Prolong(Grant& grant, Duration expires) {
  by_expiry_.erase({grant.expires, grant.id});
  grant.expires = expires;
  by_expiry_.emplace(expires, grant.id);
}

absl::StatusOr<Grant*> GrantTable::Find(GrantId id, Epoch epoch, AfterSeal after_seal) {
  if (const auto it = by_id_.find(id);
      it != by_id_.end() && it->second->phase == Grant::Phase::kLive) {
    if (it->second->epoch == epoch) return it->second.get();
    return MakeError(ErrorCode::kStale,
                     absl::StrFormat("grant %x: epoch %d is not the grant's; attach again",
                                     id.value(), epoch.value()));
  }
  if (const auto it = ended_.find(id); it != ended_.end() && it->second.epoch == epoch) {
    switch (it->second.end) {
      case GrantEnd::kExpired:
        return MakeError(ErrorCode::kLeaseExpired,
                         absl::StrFormat("grant %x: its lease ended before it was renewed; attach "
                                         "again",
                                         id.value()));
      case GrantEnd::kSealed:
        if (after_seal == AfterSeal::kWrongState) {
          return MakeError(
              ErrorCode::kWrongState,
              absl::StrFormat("writer's grant %x: its sequence is sealed already", id.value()));
        }
        break;
      case GrantEnd::kReleased:
      case GrantEnd::kAborted:
        break;
    }
    return MakeError(ErrorCode::kStale,
                     absl::StrFormat("grant %x: it was %s; attach again", id.value(),
                                     it->second.end == GrantEnd::kAborted ? "aborted or evicted"
                                                                          : "given back"));
  }
  // An id that this run of the daemon has not given is from an earlier run, or made up.
  const bool given_here = id.value() >= first_id_ && id.value() < next_id_;
  if (!given_here && id != GrantId()) {
    return MakeError(
        ErrorCode::kStale,
        absl::StrFormat("grant %x is of another life of the daemon; attach again", id.value()));
  }
  if (ended_.contains(id)) {
    return MakeError(ErrorCode::kStale, absl::StrFormat("grant %x: epoch %d was never the grant's",
                                                        id.value(), epoch.value()));
  }
  return MakeError(ErrorCode::kNotFound,
                   absl::StrFormat("no grant %x (any more); attach again", id.value()));
}

uint64_t GrantTable::SealedAs(GrantId id, Epoch epoch) const {
  const auto it = ended_.find(id);
  return it != ended_.end() && it->second.epoch == epoch ? it->second.sealed_as : 0;
}

Grant* GrantTable::FindToken(CallToken token) const {
  if (token == CallToken()) return nullptr;
  const auto it = by_token_.find(token);
  return it == by_token_.end() ? nullptr : by_id_.at(it->second).get();
}

std::vector<Grant*> GrantTable::OfSequence(SequenceId id) const {
  std::vector<Grant*> out;
  for (auto it = by_sequence_.lower_bound({id, GrantId()});
       it != by_sequence_.end() && it->first == id; ++it) {
    out.push_back(by_id_.at(it->second).get());
  }
  return out;
}

std::vector<Grant*> GrantTable::Expired(Duration served, size_t limit) const {
  std::vector<Grant*> out;
  for (const auto& [expires, id] : by_expiry_) {
    if (expires > served || out.size() == limit) break;
    out.push_back(by_id_.at(id).get());
  }
  return out;
}

void GrantTable::Revoke(Grant& grant, GrantEnd end) {
  words_.Revoke(grant.slot, ReasonOf(end), grant.epoch);
  grant.phase = Grant::Phase::kRevoked;
  grant.sequence = nullptr;
  --(grant.writer() ? writers_ : readers_);
  by_expiry_.erase({grant.expires, grant.id});
  by_sequence_.erase({grant.body->id, grant.id});
  Remember(grant, end);
}

void GrantTable::LetGo(Grant& grant, Duration served) {
  words_.GiveSlot(grant.slot);
  grant.phase = Grant::Phase::kHolding;
  if (!grant.fenced && grant.frames > 0) {
    grant.quarantined = true;
    grant.quarantined_at = served;
    by_quarantine_.emplace(served, grant.id);
    allocator_.Quarantine(grant.held());
  }
  DropIfFree(grant);
}

void GrantTable::Unpin(Grant& grant) {
  --grant.pins;
  DropIfFree(grant);
}

void GrantTable::Fenced(ConnectionId connection, GrantId id) {
  const auto it = by_id_.find(id);
  if (it == by_id_.end()) return;
  Grant& grant = *it->second;
  if (grant.fenced || grant.connection != connection) return;
  by_connection_.erase({connection, id});
  grant.fenced = true;
  if (grant.quarantined) {
    grant.quarantined = false;
    by_quarantine_.erase({grant.quarantined_at, id});
    allocator_.Unquarantine(grant.held());
  }
  DropIfFree(grant);
}

void GrantTable::ConnectionClosed(ConnectionId connection) {
  if (connections_.erase(connection) == 0) return;
  while (true) {
    const auto it = by_connection_.lower_bound({connection, GrantId()});
    if (it == by_connection_.end() || it->first != connection) return;
    Fenced(connection, it->second);
  }
}

std::vector<ConnectionId> GrantTable::UnfencedSince(Duration served) const {
  absl::flat_hash_set<ConnectionId> seen;
  for (const auto& [at, id] : by_quarantine_) {
    if (at > served) break;
    seen.insert(by_id_.at(id)->connection);
  }
  return {seen.begin(), seen.end()};
}

uint64_t GrantTable::Word(GrantId id) const {
  if (const auto it = by_id_.find(id);
      it != by_id_.end() && it->second->phase != Grant::Phase::kHolding) {
    return words_.Read(it->second->slot);
  }
  const auto it = ended_.find(id);
  return it == ended_.end() ? 0 : words_.Read(it->second.slot);
}

void GrantTable::Remember(const Grant& grant, GrantEnd end) {
  ended_[grant.id] = {grant.epoch, grant.slot, end, grant.sealed_as};
  ended_order_.push_back(grant.id);
  if (ended_order_.size() > max_grants_) {
    ended_.erase(ended_order_.front());
    ended_order_.pop_front();
  }
}

void GrantTable::DropIfFree(Grant& grant) {
  if (grant.phase != Grant::Phase::kHolding || grant.quarantined || grant.pins > 0) return;
  if (!grant.fenced) by_connection_.erase({grant.connection, grant.id});
  allocator_.Unref(grant.held());
  if (const auto it = by_token_.find(grant.token);
      it != by_token_.end() && it->second == grant.id) {
    by_token_.erase(it);
  }
  by_id_.erase(grant.id);
}

}  // namespace oasiskv::server
