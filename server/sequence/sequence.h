// One sequence: what stays fixed and is shared with its grants, and what changes with its state.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "oasiskv/geometry.h"
#include "oasiskv/ids.h"
#include "server/pool/slab_allocator.h"
#include "server/sequence/committed_map.h"
#include "server/sequence/types.h"
#include "server/sequence/written_map.h"

namespace oasiskv::server {

// Thread contract: guarded by the core's mutex; everything but `frames` is constant after
// construction.
//
// Sequence and grants share one body, so that a grant costs no list of its own: whoever holds
// frames holds a prefix of `frames`, with one reference on each. The list only ever grows, and the
// body outlives the sequence as long as a grant needs it.
struct SequenceBody {
  SequenceId id;
  std::string name;
  Identity identity;
  Geometry geometry;
  std::vector<Frame> frames;  // by block
};

// Thread contract: guarded by the core's mutex.
struct Sequence {
  explicit Sequence(std::shared_ptr<SequenceBody> b)
      : body(std::move(b)), committed(body->geometry.layers) {}

  // True when every layer of `block` is committed by the state alone.
  bool Complete(uint32_t block) const { return state != SequenceState::kOpen && block < blocks; }

  std::shared_ptr<SequenceBody> body;
  SequenceState state = SequenceState::kOpen;
  uint32_t blocks = 0;     // it holds body->frames [0, blocks), unless it is released
  CommittedMap committed;  // empty once sealed: all is committed then
  // The writer's fabric tells the daemon each write, and only what was written can be committed.
  bool sees_writes = false;
  WrittenMap written;        // with sees_writes, while open
  uint64_t token_count = 0;  // 0 while open
  MonotonicTime opened;
  GrantId writer;        // zero once sealed
  uint32_t readers = 0;  // live grants
  // Served time since when it has been sealed and without a grant; the table sets it.
  std::optional<Duration> unattended_since;
  bool with_checksums = false;
  uint64_t budget_bytes = 0;  // charged to the blob budget
  // Immutable once sealed, so that attach can copy them without the core's mutex. Never null.
  std::shared_ptr<const FirstTopK> first_topk = std::make_shared<FirstTopK>();
  std::shared_ptr<const std::string> blob = std::make_shared<std::string>();
  std::shared_ptr<std::vector<uint32_t>> checksums =
      std::make_shared<std::vector<uint32_t>>();  // [block][layer][head]
};

}  // namespace oasiskv::server
