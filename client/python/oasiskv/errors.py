"""One exception class per error code of oasiskv.v1.ErrorCode."""


class OasisError(Exception):
    """A failed call. `code` is the error code's number, `name` its name."""

    code = 0
    name = "UNSPECIFIED"


_BY_CODE = {}


def _define(class_name: str, code: int, name: str, doc: str, *bases):
    cls = type(class_name, (OasisError, *bases), {"code": code, "name": name, "__doc__": doc})
    _BY_CODE[code] = cls
    return cls


InvalidArgument = _define("InvalidArgument", 1, "INVALID_ARGUMENT", "A field is wrong; the text names it.", ValueError)
GeometryMismatch = _define("GeometryMismatch", 2, "GEOMETRY_MISMATCH", "Prefill and decode disagree on a field.", ValueError)
IdentityMismatch = _define("IdentityMismatch", 3, "IDENTITY_MISMATCH", "Model, revision or tenant differ.", ValueError)
OutOfRange = _define("OutOfRange", 4, "OUT_OF_RANGE", "Outside the sequence; nothing was moved.", IndexError)
Foreign = _define("Foreign", 5, "FOREIGN", "The head is not attached, or it is another client's grant.")
PermissionDenied = _define("PermissionDenied", 6, "PERMISSION_DENIED", "A write with a reader's grant, or the reverse; or a user that may not connect.")
AlreadyExists = _define("AlreadyExists", 7, "ALREADY_EXISTS", "A live sequence has this name.")
Unsupported = _define("Unsupported", 8, "UNSUPPORTED", "This daemon cannot do that.")
NotCommitted = _define("NotCommitted", 20, "NOT_COMMITTED", "Not written or committed yet: attach again later.")
NotSealed = _define("NotSealed", 21, "NOT_SEALED", "The wait ended before the sequence was sealed.")
Capacity = _define("Capacity", 22, "CAPACITY", "No memory, or a limit reached: back off or use another daemon.")
Draining = _define("Draining", 23, "DRAINING", "The daemon drains: use another one.")
DeadlineExceeded = _define("DeadlineExceeded", 24, "DEADLINE_EXCEEDED", "The deadline passed.", TimeoutError)
Cancelled = _define("Cancelled", 25, "CANCELLED", "The caller cancelled.")
Stale = _define("Stale", 40, "STALE", "The grant is gone: discard what was read, attach again.")
LeaseExpired = _define("LeaseExpired", 41, "LEASE_EXPIRED", "The lease ended: discard what was read, attach again.")
NotFound = _define("NotFound", 42, "NOT_FOUND", "No such sequence: recompute.", LookupError)
WrongState = _define("WrongState", 43, "WRONG_STATE", "The state of the sequence or handle does not allow the call.")
PeerLost = _define("PeerLost", 60, "PEER_LOST", "The daemon is gone or cannot be reached: connect again.", ConnectionError)
ChecksumMismatch = _define("ChecksumMismatch", 80, "CHECKSUM_MISMATCH", "The bytes differ from what was written: report it.")
Internal = _define("Internal", 81, "INTERNAL", "An invariant did not hold: report it.")

__all__ = [cls.__name__ for cls in _BY_CODE.values()]


def error_for(code: int, message: str) -> OasisError:
    """The exception for a code of the C ABI."""
    return _BY_CODE.get(code, OasisError)(message)
