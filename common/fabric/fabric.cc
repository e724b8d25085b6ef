#include "common/fabric/fabric.h"

#include "absl/strings/str_cat.h"
#include "common/fabric/endpoint.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric {

absl::StatusOr<std::string> Endpoint::Accept(absl::string_view) {
  return MakeError(ErrorCode::kUnsupported,
                   absl::StrCat("clients of the fabric ", std::string(fabric()),
                                " connect by themselves, not over the control plane"));
}

absl::StatusOr<LocalMemory> Connection::Local(const GrantView& grant) const {
  return MakeError(ErrorCode::kUnsupported,
                   absl::StrCat("read over ", std::string(fabric()),
                                ", not over shm: the frames are not this host's"));
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

absl::StatusOr<std::unique_ptr<BufferRegistration>> Connection::RegisterDeviceBuffer(
    const DeviceBuffer& memory) {
  return MakeError(ErrorCode::kUnsupported,
                   absl::StrCat("the fabric ", std::string(fabric()),
                                " cannot reach memory of a device; the verbs fabric can, where "
                                "kernel and driver do ('oasisctl doctor' tells)"));
}

}  // namespace oasiskv::fabric
