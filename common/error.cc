#include "oasiskv/error.h"

#include <charconv>
#include <optional>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace oasiskv {
namespace {

constexpr absl::string_view kPayloadUrl = "oasiskv.v1.ErrorCode";

struct CodeInfo {
  ErrorCode code;
  absl::string_view name;
  absl::StatusCode canonical;
};

constexpr CodeInfo kCodes[] = {
    {ErrorCode::kUnspecified, "UNSPECIFIED", absl::StatusCode::kUnknown},
    {ErrorCode::kInvalidArgument, "INVALID_ARGUMENT", absl::StatusCode::kInvalidArgument},
    {ErrorCode::kGeometryMismatch, "GEOMETRY_MISMATCH", absl::StatusCode::kFailedPrecondition},
    {ErrorCode::kIdentityMismatch, "IDENTITY_MISMATCH", absl::StatusCode::kFailedPrecondition},
    {ErrorCode::kOutOfRange, "OUT_OF_RANGE", absl::StatusCode::kOutOfRange},
    {ErrorCode::kForeign, "FOREIGN", absl::StatusCode::kPermissionDenied},
    {ErrorCode::kPermissionDenied, "PERMISSION_DENIED", absl::StatusCode::kPermissionDenied},
    {ErrorCode::kAlreadyExists, "ALREADY_EXISTS", absl::StatusCode::kAlreadyExists},
    {ErrorCode::kUnsupported, "UNSUPPORTED", absl::StatusCode::kUnimplemented},
    {ErrorCode::kNotCommitted, "NOT_COMMITTED", absl::StatusCode::kFailedPrecondition},
    {ErrorCode::kNotSealed, "NOT_SEALED", absl::StatusCode::kFailedPrecondition},
    {ErrorCode::kCapacity, "CAPACITY", absl::StatusCode::kResourceExhausted},
    {ErrorCode::kDraining, "DRAINING", absl::StatusCode::kUnavailable},
    {ErrorCode::kDeadlineExceeded, "DEADLINE_EXCEEDED", absl::StatusCode::kDeadlineExceeded},
    {ErrorCode::kCancelled, "CANCELLED", absl::StatusCode::kCancelled},
    {ErrorCode::kStale, "STALE", absl::StatusCode::kAborted},
    {ErrorCode::kLeaseExpired, "LEASE_EXPIRED", absl::StatusCode::kAborted},
    {ErrorCode::kNotFound, "NOT_FOUND", absl::StatusCode::kNotFound},
    {ErrorCode::kWrongState, "WRONG_STATE", absl::StatusCode::kFailedPrecondition},
    {ErrorCode::kPeerLost, "PEER_LOST", absl::StatusCode::kUnavailable},
    {ErrorCode::kChecksumMismatch, "CHECKSUM_MISMATCH", absl::StatusCode::kDataLoss},
    {ErrorCode::kInternal, "INTERNAL", absl::StatusCode::kInternal},
};

const CodeInfo& Info(ErrorCode code) {
  for (const CodeInfo& info : kCodes) {
    if (info.code == code) return info;
  }
  return kCodes[0];
}

}  // namespace

absl::string_view ErrorCodeName(ErrorCode code) { return Info(code).name; }

absl::StatusCode CanonicalCode(ErrorCode code) { return Info(code).canonical; }

absl::Status MakeError(ErrorCode code, absl::string_view message) {
  absl::Status status(CanonicalCode(code), absl::StrCat(ErrorCodeName(code), ": ", message));
  status.SetPayload(kPayloadUrl, absl::Cord(absl::StrCat(static_cast<int>(code))));
  return status;
}

ErrorCode ErrorCodeOf(const absl::Status& status) {
  if (status.ok()) return ErrorCode::kUnspecified;
  if (auto payload = status.GetPayload(kPayloadUrl)) {
    int value = 0;
    if (absl::SimpleAtoi(std::string(*payload), &value)) return static_cast<ErrorCode>(value);
  }
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return ErrorCode::kInvalidArgument;
    case absl::StatusCode::kOutOfRange:
      return ErrorCode::kOutOfRange;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return ErrorCode::kPermissionDenied;
    case absl::StatusCode::kAlreadyExists:
      return ErrorCode::kAlreadyExists;
    case absl::StatusCode::kUnimplemented:
      return ErrorCode::kUnsupported;
    case absl::StatusCode::kResourceExhausted:
      return ErrorCode::kCapacity;
    case absl::StatusCode::kDeadlineExceeded:
      return ErrorCode::kDeadlineExceeded;
    case absl::StatusCode::kCancelled:
      return ErrorCode::kCancelled;
    case absl::StatusCode::kNotFound:
      return ErrorCode::kNotFound;
    case absl::StatusCode::kFailedPrecondition:
      return ErrorCode::kWrongState;
    case absl::StatusCode::kAborted:
      return ErrorCode::kStale;
    case absl::StatusCode::kUnavailable:
      return ErrorCode::kPeerLost;
    default:
      return ErrorCode::kInternal;
  }
}

absl::Status Annotate(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  absl::Status out(status.code(), absl::StrCat(context, ": ", status.message()));
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { out.SetPayload(url, payload); });
  return out;
}

}  // namespace oasiskv
