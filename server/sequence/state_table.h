// Which operation is legal in which state of a sequence, and what becomes of it. README.md of this
// folder shows the same table; a test compares the two and drives the core through every row.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "oasiskv/error.h"
#include "server/sequence/types.h"

namespace oasiskv::server {

enum class SequenceOp : uint8_t {
  kExtend,  // writer
  kCommit,  // writer
  kSeal,    // writer
  // The daemon: the writer's lease expired, or the writer released its grant before sealing.
  kWriterLost,
  kAttach,        // anyone who knows the name
  kAttachSealed,  // the same, of a sealed sequence only
  kRelease,       // anyone who knows the name
  kAbort,         // anyone who knows the name; an operator's evict
  kUnattended,    // the daemon: nobody has had a grant for --unattended_ttl
};

// One cell: `error` is kUnspecified where the operation is legal, and the state becomes `to`.
struct StateRule {
  SequenceState from;
  SequenceOp op;
  SequenceState to;
  ErrorCode error;
};

// Every pair of state and operation, once.
std::span<const StateRule> StateTable();
const StateRule& FindRule(SequenceState from, SequenceOp op);

// Moves `state` by the table, or leaves it and returns the rule's error, whose text names state,
// call and sequence.
absl::Status Advance(SequenceState& state, SequenceOp op, absl::string_view sequence_name);

absl::string_view StateName(SequenceState state);  // "open"
absl::string_view OpName(SequenceOp op);           // "attach sealed"

}  // namespace oasiskv::server
