#include "common/fabric/fabric.h"

#include "oasiskv/error.h"

namespace oasiskv::fabric {

absl::string_view KindName(Kind kind) {
  switch (kind) {
    case Kind::kShm:
      return "shm";
    case Kind::kUcx:
      return "ucx";
    case Kind::kVerbs:
      break;
  }
  return "verbs";
}

absl::Status CheckGrantWord(uint64_t word, Epoch epoch) {
  if (word == epoch.value()) return absl::OkStatus();
  if (word == RevokedWord(RevokeReason::kExpired, epoch)) {
    return MakeError(ErrorCode::kLeaseExpired,
                     "the grant's lease ended before it was renewed; attach again");
  }
  return MakeError(ErrorCode::kStale,
                   "the grant was released, aborted or evicted, or its memory serves another "
                   "grant; attach again");
}

}  // namespace oasiskv::fabric
