// All sequences of the daemon, by id and by name.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "oasiskv/ids.h"
#include "server/sequence/sequence.h"

namespace oasiskv::server {

// Thread contract: not safe for concurrent use (the core's mutex guards it).
//
// A name is unique among the live (open, sealed) sequences of its tenant; a released sequence,
// which only its grants keep, has given its name back. Sequences in the table are bounded by
// `max_sequences`, what they carry besides frames by `max_blobs_bytes`.
class SequenceTable {
 public:
  SequenceTable(uint32_t max_sequences, uint64_t max_blobs_bytes)
      : max_sequences_(max_sequences), max_blobs_bytes_(max_blobs_bytes) {}

  // ALREADY_EXISTS or CAPACITY when Insert would fail.
  absl::Status CheckInsert(const std::string& tenant, const std::string& name) const;
  // `body` without id; the table gives it one. CheckInsert must have passed.
  Sequence& Insert(std::shared_ptr<SequenceBody> body);

  // The live sequence of that name; null when there is none.
  Sequence* FindLive(const std::string& tenant, const std::string& name) const;
  // Released ones of that name that grants still hold.
  std::vector<Sequence*> FindReleased(const std::string& tenant, const std::string& name) const;
  // A sealed sequence has no grant since `served` (served time); it has one again.
  void SetUnattended(Sequence& sequence, Duration served);
  void SetAttended(Sequence& sequence);
  // Up to `limit` sequences that have had no grant since `served` or longer; the longest first.
  std::vector<Sequence*> UnattendedSince(Duration served, size_t limit) const;
  // Gives the name back; the state is released already.
  void MarkReleased(Sequence& sequence);
  // Forgets the sequence and returns its budget.
  void Erase(Sequence& sequence);

  // Charges `bytes` more to `sequence`. CAPACITY naming --max_blobs_bytes; nothing is charged then.
  absl::Status Charge(Sequence& sequence, uint64_t bytes);
  void Refund(Sequence& sequence, uint64_t bytes);

  const absl::btree_map<SequenceId, std::unique_ptr<Sequence>>& all() const { return by_id_; }

 private:
  using Key = std::pair<std::string, std::string>;  // tenant, name

  const uint32_t max_sequences_;
  const uint64_t max_blobs_bytes_;
  uint64_t next_id_ = 1;
  uint64_t budget_used_ = 0;
  absl::btree_map<SequenceId, std::unique_ptr<Sequence>> by_id_;
  absl::flat_hash_map<Key, Sequence*> live_;
  absl::flat_hash_map<Key, std::vector<Sequence*>> released_;
  absl::btree_set<std::pair<Duration, SequenceId>> unattended_;
};

}  // namespace oasiskv::server
