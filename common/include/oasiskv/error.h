// The project's own error codes: a payload of absl::Status, and oasiskv.v1.ErrorCode in the proto.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "oasiskv/export.h"

namespace oasiskv {

// Values equal those of oasiskv.v1.ErrorCode, whose comments say when each happens and what the
// caller does next.
enum class ErrorCode : int {
  kUnspecified = 0,
  // Give up: the call itself is wrong.
  kInvalidArgument = 1,
  kGeometryMismatch = 2,
  kIdentityMismatch = 3,
  kOutOfRange = 4,
  kForeign = 5,
  kPermissionDenied = 6,
  kAlreadyExists = 7,
  kUnsupported = 8,
  // Wait, then try again.
  kNotCommitted = 20,
  kNotSealed = 21,
  kCapacity = 22,
  kDraining = 23,
  kDeadlineExceeded = 24,
  kCancelled = 25,
  // Attach again (and recompute when that fails too).
  kStale = 40,
  kLeaseExpired = 41,
  kNotFound = 42,
  kWrongState = 43,
  // Connect again.
  kPeerLost = 60,
  // Report it: a fault of the system.
  kChecksumMismatch = 80,
  kInternal = 81,
};

// "STALE", "LEASE_EXPIRED", ...: the proto's names without their prefix.
OASISKV_EXPORT absl::string_view ErrorCodeName(ErrorCode code);

// The canonical status code that goes with `code` (kCapacity -> kResourceExhausted, ...).
OASISKV_EXPORT absl::StatusCode CanonicalCode(ErrorCode code);

// A status of CanonicalCode(code) with `code` as its payload. The message begins with the code's
// name.
OASISKV_EXPORT absl::Status MakeError(ErrorCode code, absl::string_view message);

// The payload's code; kUnspecified for an OK status. For an error without a payload, the code
// nearest to its canonical code, so that an error of another library never looks like success.
OASISKV_EXPORT ErrorCode ErrorCodeOf(const absl::Status& status);

// `status` with "context: " put before its message; code and payload stay.
OASISKV_EXPORT absl::Status Annotate(const absl::Status& status, absl::string_view context);

}  // namespace oasiskv
