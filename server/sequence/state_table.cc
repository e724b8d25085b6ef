#include "server/sequence/state_table.h"

#include "absl/strings/str_format.h"

namespace oasiskv::server {
namespace {

using S = SequenceState;
using Op = SequenceOp;
using E = ErrorCode;

constexpr int kStates = 4;
constexpr int kOps = 9;

// In the order of SequenceState and SequenceOp, so that a rule is found by index.
constexpr StateRule kTable[] = {
    {S::kOpen, Op::kExtend, S::kOpen, E::kUnspecified},
    {S::kOpen, Op::kCommit, S::kOpen, E::kUnspecified},
    {S::kOpen, Op::kSeal, S::kSealed, E::kUnspecified},
    {S::kOpen, Op::kWriterLost, S::kAborted, E::kUnspecified},
    {S::kOpen, Op::kAttach, S::kOpen, E::kUnspecified},
    {S::kOpen, Op::kAttachSealed, S::kOpen, E::kNotSealed},
    {S::kOpen, Op::kRelease, S::kOpen, E::kWrongState},
    {S::kOpen, Op::kAbort, S::kAborted, E::kUnspecified},
    {S::kOpen, Op::kUnattended, S::kOpen, E::kUnspecified},

    {S::kSealed, Op::kExtend, S::kSealed, E::kWrongState},
    {S::kSealed, Op::kCommit, S::kSealed, E::kWrongState},
    {S::kSealed, Op::kSeal, S::kSealed, E::kWrongState},
    {S::kSealed, Op::kWriterLost, S::kSealed, E::kUnspecified},
    {S::kSealed, Op::kAttach, S::kSealed, E::kUnspecified},
    {S::kSealed, Op::kAttachSealed, S::kSealed, E::kUnspecified},
    {S::kSealed, Op::kRelease, S::kReleased, E::kUnspecified},
    {S::kSealed, Op::kAbort, S::kAborted, E::kUnspecified},
    {S::kSealed, Op::kUnattended, S::kReleased, E::kUnspecified},

    {S::kReleased, Op::kExtend, S::kReleased, E::kWrongState},
    {S::kReleased, Op::kCommit, S::kReleased, E::kWrongState},
    {S::kReleased, Op::kSeal, S::kReleased, E::kWrongState},
    {S::kReleased, Op::kWriterLost, S::kReleased, E::kUnspecified},
    {S::kReleased, Op::kAttach, S::kReleased, E::kNotFound},
    {S::kReleased, Op::kAttachSealed, S::kReleased, E::kNotFound},
    {S::kReleased, Op::kRelease, S::kReleased, E::kUnspecified},
    {S::kReleased, Op::kAbort, S::kAborted, E::kUnspecified},
    {S::kReleased, Op::kUnattended, S::kReleased, E::kUnspecified},

    {S::kAborted, Op::kExtend, S::kAborted, E::kStale},
    {S::kAborted, Op::kCommit, S::kAborted, E::kStale},
    {S::kAborted, Op::kSeal, S::kAborted, E::kStale},
    {S::kAborted, Op::kWriterLost, S::kAborted, E::kUnspecified},
    {S::kAborted, Op::kAttach, S::kAborted, E::kNotFound},
    {S::kAborted, Op::kAttachSealed, S::kAborted, E::kNotFound},
    {S::kAborted, Op::kRelease, S::kAborted, E::kUnspecified},
    {S::kAborted, Op::kAbort, S::kAborted, E::kUnspecified},
    {S::kAborted, Op::kUnattended, S::kAborted, E::kUnspecified},
};

constexpr int IndexOf(S state, Op op) {
  return (static_cast<int>(state) - 1) * kOps + static_cast<int>(op);
}

constexpr bool Ordered() {
  int i = 0;
  for (const StateRule& rule : kTable) {
    if (IndexOf(rule.from, rule.op) != i++) return false;
  }
  return i == kStates * kOps;
}
static_assert(Ordered(), "kTable needs every pair of state and operation, in their order");

}  // namespace

std::span<const StateRule> StateTable() { return kTable; }

const StateRule& FindRule(SequenceState from, SequenceOp op) { return kTable[IndexOf(from, op)]; }

absl::Status Advance(SequenceState& state, SequenceOp op, absl::string_view sequence_name) {
  const StateRule& rule = FindRule(state, op);
  if (rule.error == ErrorCode::kUnspecified) {
    state = rule.to;
    return absl::OkStatus();
  }
  const char* const next = op == SequenceOp::kRelease            ? "; abort it to throw it away"
                           : rule.error == ErrorCode::kNotSealed ? "; attach with wait_for_seal_ms"
                                                                 : "";
  return MakeError(rule.error, absl::StrFormat("sequence \"%s\" is %s: no %s%s", sequence_name,
                                               StateName(state), OpName(op), next));
}

absl::string_view StateName(SequenceState state) {
  switch (state) {
    case S::kOpen:
      return "open";
    case S::kSealed:
      return "sealed";
    case S::kReleased:
      return "released";
    case S::kAborted:
      return "aborted";
  }
  return "unknown";
}

absl::string_view OpName(SequenceOp op) {
  switch (op) {
    case Op::kExtend:
      return "extend";
    case Op::kCommit:
      return "commit";
    case Op::kSeal:
      return "seal";
    case Op::kWriterLost:
      return "writer lost";
    case Op::kAttach:
      return "attach";
    case Op::kAttachSealed:
      return "attach sealed";
    case Op::kRelease:
      return "release";
    case Op::kAbort:
      return "abort";
    case Op::kUnattended:
      return "unattended";
  }
  return "unknown";
}

}  // namespace oasiskv::server
