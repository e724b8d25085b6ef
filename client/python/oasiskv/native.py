"""Loads liboasiskv.so and declares the C ABI (oasiskv.h, oasiskv_gpu.h); nothing outside the package needs this module.

ctypes.CDLL drops the GIL for the length of every call.
"""

import contextlib
import ctypes
import math
import operator
import os
import pathlib
import threading
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

import numpy as np

from oasiskv.errors import error_for


def library_path() -> str:
    """$OASISKV_LIBRARY, or the library beside this file, or the one that the loader finds."""
    named = os.environ.get("OASISKV_LIBRARY")
    if named:
        return named
    beside = pathlib.Path(__file__).with_name("liboasiskv.so")
    return str(beside) if beside.exists() else "liboasiskv.so"


_RANGES = {
    kind: (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    for kind, bits, signed in ((c_uint32, 32, False), (c_uint64, 64, False), (c_int32, 32, True), (c_int64, 64, True))
}


def whole(value, kind, what: str) -> int:
    """`value` as an integer that fits `kind`: ctypes would cut it off in silence. Raises TypeError and ValueError naming
    `what`."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} is {value!r}; a whole number is needed") from None
    low, high = _RANGES[kind]
    if not low <= number <= high:
        raise ValueError(f"{what} is {number}; it must be between {low} and {high}")
    return number


class Struct(ctypes.Structure):
    """A structure of the C ABI; its first field is its size."""

    def __init__(self, **fields):
        for name, kind in self._fields_:
            if kind in _RANGES and name in fields:
                fields[name] = whole(fields[name], kind, name)
        super().__init__(struct_size=ctypes.sizeof(self), **fields)

    def as_dict(self) -> dict:
        return {name: getattr(self, name) for name, *_ in self._fields_ if name != "struct_size"}


def _struct(name: str, *fields):
    return type(name, (Struct,), {"_fields_": [("struct_size", c_size_t), *fields]})


def _counters(*names):
    return [(name, c_uint64) for name in names]


CGeometry = _struct(
    "CGeometry",
    *[(n, c_uint32) for n in ("layers", "kv_heads", "head_dim", "block_tokens", "element_type", "packing")],
    ("first_head", c_uint32),
    ("total_kv_heads", c_uint32),
)
CIdentity = _struct("CIdentity", ("model", c_char_p), ("revision", c_char_p), ("tenant", c_char_p))
CLayout = _struct("CLayout", ("entry_bytes", c_uint32), ("summary_bytes", c_uint32), ("frame_bytes", c_uint32))
CClientOptions = _struct(
    "CClientOptions",
    ("address", c_char_p),
    ("fabric", c_char_p),
    ("rpc_timeout_ms", c_uint64),
    ("read_timeout_ms", c_uint64),
    ("lease_ms", c_uint64),
    ("verify_checksums", c_uint32),
    ("verbs_device", c_char_p),
    ("verbs_port", c_uint32),
    ("verbs_gid_given", c_uint32),
    ("verbs_gid_index", c_uint32),
    ("verbs_peer_timeout_ms", c_uint64),
)
CClientStats = _struct(
    "CClientStats",
    *_counters(
        "reads", "writes", "pieces", "requests", "bytes_read", "bytes_written", "request_bytes", "grant_checks",
        "stale_reads", "expired_reads", "deadline_reads", "failed_reads", "checksums_verified",
        "checksum_failures", "reconnects", "renewals", "grants_lost",
        "timed_reads", "prepare_ns", "post_ns", "wire_ns", "bytes_direct", "bytes_bounced",
    ),
)
CProducerSpec = _struct(
    "CProducerSpec",
    ("name", c_char_p),
    ("identity", POINTER(CIdentity)),
    ("geometry", POINTER(CGeometry)),
    ("blocks", c_uint32),
    ("checksums", c_uint32),
    ("lease_ms", c_uint64),
)
CSealSpec = _struct(
    "CSealSpec",
    ("token_count", c_uint64),
    ("first_queries", POINTER(c_float)),
    ("query_heads", c_uint32),
    ("combine", c_uint32),
    ("top_k", c_uint32),
    ("blob", c_char_p),
    ("blob_size", c_size_t),
    ("bound_weight", c_double),
)
CReaderSpec = _struct(
    "CReaderSpec",
    ("name", c_char_p),
    ("identity", POINTER(CIdentity)),
    ("geometry", POINTER(CGeometry)),
    ("first_head", c_uint32),
    ("head_count", c_uint32),
    ("lease_ms", c_uint64),
    ("wait_for_seal_ms", c_uint64),
)
CReaderInfo = _struct(
    "CReaderInfo",
    ("sealed", c_uint32),
    ("token_count", c_uint64),
    ("blocks", c_uint32),
    ("first_head", c_uint32),
    ("head_count", c_uint32),
    ("first_topk_k", c_uint32),
    ("first_topk", POINTER(c_int32)),
    ("blob", c_void_p),
    ("blob_size", c_size_t),
)
CSourceOptions = _struct("CSourceOptions", ("host_cache", c_uint32), ("host_cache_bytes", c_uint64))
CSourceStats = _struct(
    "CSourceStats", *_counters("remote_bytes", "remote_entries", "host_hits", "host_bytes", "written_back")
)
CWorkingSetOptions = _struct(
    "CWorkingSetOptions",
    ("geometry", POINTER(CGeometry)),
    ("query_heads", c_uint32),
    ("resident_blocks", c_uint32),
    ("fetch_ratio", c_double),
    *[(n, c_uint32) for n in ("mode", "combine", "late", "loss")],
    ("late_deadline_ms", c_uint64),
    ("max_requests", c_uint32),
    ("max_blocks", c_uint32),
    ("bound_weight", c_double),
    ("summaries", c_uint32),
    ("ranked_blocks", c_uint32),
)
CWorkingSetStats = _struct(
    "CWorkingSetStats",
    *_counters(
        "steps", "predicted", "hit", "admitted", "promoted", "refused_by_cap", "late", "skipped", "degraded",
        "demanded", "bytes_moved", "bytes_used", "admission_bytes", "agreement_samples",
    ),
    ("agreement_sum", c_double),
)
CResidentView = _struct(
    "CResidentView", ("pages", c_void_p), ("map", c_void_p), ("local_tokens", c_uint32), ("local_block", c_uint32)
)


class CGpuPages(ctypes.Structure):
    _fields_ = [("k", c_void_p), ("v", c_void_p), ("page_stride", c_int64), ("head_stride", c_int64),
                ("token_stride", c_int64), ("table", c_void_p)]


class CGpuSlotState(ctypes.Structure):
    _fields_ = [("clock", c_uint64), ("complete", c_uint32), ("local_tokens", c_uint32), ("promoted", c_int32),
                ("pending", c_uint32)]


CGpuWorkingSetOptions = _struct(
    "CGpuWorkingSetOptions",
    ("base", POINTER(CWorkingSetOptions)),
    ("device", c_int32),
    ("max_rows", c_uint32),
    ("max_new_tokens", c_uint32),
    ("pages", POINTER(CGpuPages)),
    ("gather_ctas", c_uint32),
    ("gather_threads", c_uint32),
    ("priority", c_int32),
    ("local_only", c_uint32),
    ("max_host_bytes", c_uint64),
    ("predict_processors", c_uint32),
)
CGpuForeground = _struct("CGpuForeground", ("stream", c_void_p), ("processors", c_uint32))
CGpuRows = _struct("CGpuRows", ("slots", c_void_p), ("count", c_void_p), ("max_rows", c_uint32))
CGpuLayerView = _struct(
    "CGpuLayerView", ("pages", CGpuPages), ("map", c_void_p), ("state", c_void_p), ("predicted", c_void_p)
)
CGpuResolved = _struct("CGpuResolved", ("blocks", c_void_p), ("pages", c_void_p), ("missing", c_void_p))
CGpuSnapshot = _struct(
    "CGpuSnapshot", ("map", c_void_p), ("stamps", c_void_p), ("predicted", c_void_p), ("pages", c_void_p),
    ("state", CGpuSlotState),
)


class CKvView(ctypes.Structure):
    _fields_ = [("base", c_void_p), ("token_stride", c_int64), ("head_stride", c_int64)]


_HANDLE = c_void_p
_OUT = POINTER(c_void_p)
_ROWS = [_HANDLE, ("layer", c_uint32), c_void_p, c_size_t]  # working set, layer, slots, rows

# Name without oasiskv_ -> argument types; numbers that callers give also have their name. All of these return an error
# code.
_FALLIBLE = {
    "set_log_level": [c_int],
    "geometry_layout": [POINTER(CGeometry), POINTER(CLayout)],
    "client_connect": [POINTER(CClientOptions), _OUT],
    "client_health": [_HANDLE],
    "client_describe": [_HANDLE, c_char_p, c_size_t],
    "client_stats_get": [_HANDLE, POINTER(CClientStats)],
    "client_release_sequence": [_HANDLE, c_char_p, POINTER(CIdentity), POINTER(c_uint32)],
    "client_abort": [_HANDLE, c_char_p, POINTER(CIdentity), c_char_p, POINTER(c_uint32)],
    "buffer_register": [_HANDLE, c_void_p, c_size_t, _OUT],
    "buffer_direct": [_HANDLE, POINTER(c_uint32)],
    "producer_open": [_HANDLE, POINTER(CProducerSpec), _OUT],
    "producer_extend": [_HANDLE, ("blocks", c_uint32)],
    "producer_write_tokens": [
        _HANDLE, ("layer", c_uint32), ("first_token", c_uint64), ("tokens", c_uint32), CKvView, CKvView,
    ],
    "producer_commit_written": [_HANDLE],
    "producer_commit": [
        _HANDLE, ("first_layer", c_uint32), ("layer_count", c_uint32), ("first_block", c_uint32),
        ("block_count", c_uint32),
    ],
    "producer_seal": [_HANDLE, POINTER(CSealSpec)],
    "producer_abort": [_HANDLE, c_char_p],
    "reader_attach": [_HANDLE, POINTER(CReaderSpec), _OUT],
    "reader_info_get": [_HANDLE, POINTER(CReaderInfo)],
    "reader_health": [_HANDLE],
    "reader_release": [_HANDLE],
    "reader_fetch": [_HANDLE, c_void_p, c_size_t, c_uint64],
    "reader_fetch_start": [_HANDLE, c_void_p, c_size_t, c_uint64, _OUT],
    "reader_fetch_layers": [
        _HANDLE, ("block", c_uint32), ("first_layer", c_uint32), ("layers", c_uint32), c_void_p, c_uint64,
    ],
    "reader_fetch_summaries": [_HANDLE, ("first_block", c_uint32), ("blocks", c_uint32), c_void_p, c_uint64],
    "reader_fetch_topk": [
        _HANDLE, ("layer", c_uint32), ("head", c_uint32), c_void_p, c_size_t, c_void_p, c_int64, c_uint64,
    ],
    "fetch_done": [_HANDLE, POINTER(c_uint32)],
    "fetch_wait": [_HANDLE],
    "fetch_cancel": [_HANDLE],
    "source_make": [_OUT, c_size_t, POINTER(CSourceOptions), _OUT],
    "source_stats_get": [_HANDLE, POINTER(CSourceStats)],
    "working_set_create": [POINTER(CWorkingSetOptions), _OUT],
    "working_set_admit": [_HANDLE, _HANDLE, POINTER(c_uint32)],
    "working_set_leave": [_HANDLE, ("slot", c_uint32)],
    "working_set_append": [*_ROWS, c_void_p, c_void_p],
    "working_set_submit": [*_ROWS, c_void_p],
    "working_set_submit_topk": [*_ROWS, c_void_p, c_uint32],
    "working_set_attention_done": _ROWS,
    "working_set_wait": _ROWS,
    "working_set_resolve": [*_ROWS, c_void_p],
    "working_set_sample_agreement": [*_ROWS, c_void_p],
    "working_set_view": [_HANDLE, ("layer", c_uint32), ("slot", c_uint32), POINTER(CResidentView)],
    "working_set_fetch_cap": [_HANDLE, POINTER(c_uint32)],
    "working_set_stats_get": [_HANDLE, POINTER(CWorkingSetStats)],
    "gpu_working_set_create": [POINTER(CGpuWorkingSetOptions), _OUT],
    "gpu_working_set_admit": [_HANDLE, _HANDLE, POINTER(c_uint32)],
    "gpu_working_set_leave": [_HANDLE, ("slot", c_uint32)],
    "gpu_working_set_set_rows": [_HANDLE, c_void_p, c_size_t, c_void_p],
    "gpu_working_set_foreground_get": [_HANDLE, POINTER(CGpuForeground)],
    "gpu_working_set_rows_get": [_HANDLE, POINTER(CGpuRows)],
    "gpu_working_set_append": [_HANDLE, ("layer", c_uint32), c_void_p, c_void_p, c_int64, c_void_p],
    "gpu_working_set_submit": [_HANDLE, ("layer", c_uint32), c_void_p, ("query_type", c_uint32), c_int64, c_void_p],
    "gpu_working_set_submit_topk": [_HANDLE, ("layer", c_uint32), c_void_p, ("k", c_uint32), c_void_p],
    "gpu_working_set_attention_done": [_HANDLE, ("layer", c_uint32), c_void_p],
    "gpu_working_set_wait": [_HANDLE, ("layer", c_uint32), c_void_p],
    "gpu_working_set_resolve": [
        _HANDLE, ("layer", c_uint32), c_void_p, c_uint32, c_int64, c_uint32, c_void_p, POINTER(CGpuResolved),
    ],
    "gpu_working_set_sample_agreement": [_HANDLE, ("layer", c_uint32), c_void_p, c_uint32, c_int64, c_void_p],
    "gpu_working_set_end_step": [_HANDLE, c_void_p],
    "gpu_working_set_view": [_HANDLE, ("layer", c_uint32), POINTER(CGpuLayerView)],
    "gpu_working_set_fetch_cap": [_HANDLE, POINTER(c_uint32)],
    "gpu_working_set_stats_get": [_HANDLE, POINTER(CWorkingSetStats)],
    "gpu_working_set_request_stats_get": [_HANDLE, ("slot", c_uint32), POINTER(CWorkingSetStats)],
    "gpu_working_set_error": [_HANDLE],
    "gpu_working_set_clear_error": [_HANDLE],
    "gpu_working_set_snapshot": [_HANDLE, ("layer", c_uint32), ("slot", c_uint32), POINTER(CGpuSnapshot)],
}
_FREES = ("client", "buffer", "producer", "reader", "fetch", "source", "working_set", "gpu_working_set")

_lib = ctypes.CDLL(library_path())
_lib.oasiskv_last_error.restype = c_char_p
_lib.oasiskv_version.restype = c_char_p
_lib.oasiskv_crc32c.restype = c_uint32
_lib.oasiskv_crc32c.argtypes = [c_void_p, c_size_t, c_uint32]
_FUNCTIONS = {}  # name -> (function, [(position, name, type) of each number that is checked])
for _name, _args in _FALLIBLE.items():
    _function = getattr(_lib, "oasiskv_" + _name)
    _function.restype = c_int
    _function.argtypes = [a[1] if isinstance(a, tuple) else a for a in _args]
    _FUNCTIONS[_name] = (_function, [(i, *a) for i, a in enumerate(_args) if isinstance(a, tuple)])
for _name in _FREES:
    _free = getattr(_lib, f"oasiskv_{_name}_free")
    _free.restype = None
    _free.argtypes = [c_void_p]


def call(name: str, *args) -> None:
    """Calls oasiskv_<name>; raises the exception for its error code. Handles among the arguments are in use until it
    returns."""
    function, numbers = _FUNCTIONS[name]
    args = list(args)
    for position, what, kind in numbers:
        args[position] = whole(args[position], kind, what)
    with contextlib.ExitStack() as stack:
        for position, argument in enumerate(args):
            if isinstance(argument, Handle):
                args[position] = stack.enter_context(argument.in_use())
        code = function(*args)
        if code != 0:
            raise error_for(code, _lib.oasiskv_last_error().decode(errors="replace"))


def get(kind, name: str, *args):
    """What oasiskv_<name> gives through its last argument, which points at a `kind`."""
    out = kind()
    call(name, *args, ctypes.byref(out))
    return out


class Handle:
    """Thread contract: close() is safe beside calls of other threads: it waits for those that run, and later ones raise
    ValueError. What else is safe is said where a kind of handle is defined.

    Owner of one handle of the C ABI. It cannot be copied: two owners would free it twice.
    """

    _kind: str  # "client", "reader", ...

    def __init__(self, pointer: c_void_p):
        self._pointer = pointer
        self._open = True
        self._calls = 0
        self._leases = 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def in_use(self):
        """The pointer, for one call."""
        with self._changed:
            if not self._open:
                raise ValueError(f"this {self._kind} is closed")
            self._calls += 1
        try:
            yield self._pointer
        finally:
            with self._changed:
                self._calls -= 1
                self._changed.notify_all()

    def lease(self) -> "_Lease":
        """Keeps the handle's memory, as long as it lives, also when the handle is closed meanwhile."""
        return _Lease(self)

    def close(self) -> None:
        with self._changed:
            self._open = False
            while self._calls:
                self._changed.wait()
            self._free_if_unused()

    def _free_if_unused(self) -> None:
        if self._open or self._leases or not self._pointer:
            return
        pointer, self._pointer = self._pointer, None
        getattr(_lib, f"oasiskv_{self._kind}_free")(pointer)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def __copy__(self):
        raise TypeError(f"a {self._kind} cannot be copied")

    def __deepcopy__(self, memo):
        return self.__copy__()

    def __reduce__(self):
        raise TypeError(f"a {self._kind} cannot be pickled")

    def __del__(self):
        if hasattr(self, "_changed"):  # else its making failed
            self.close()


class _Lease:
    """See Handle.lease."""

    def __init__(self, handle: Handle):
        self._handle = handle
        with handle._changed:
            handle._leases += 1

    def __del__(self):
        with self._handle._changed:
            self._handle._leases -= 1
            self._handle._free_if_unused()


def text(value, what: str) -> bytes:
    """UTF-8 for the C ABI. Raises TypeError and ValueError naming `what`."""
    if not isinstance(value, (str, bytes)):
        raise TypeError(f"{what} is {value!r}; a string is needed")
    encoded = value.encode() if isinstance(value, str) else value
    if b"\0" in encoded:
        raise ValueError(f"{what} is {value!r}; it must not hold a zero byte")
    return encoded


def milliseconds(seconds: float, what: str = "timeout") -> int:
    """Seconds to whole milliseconds, at least 1 for a time above 0; 0 stays 0, which means the default."""
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{what} is {seconds} s; it must be 0 or more")
    return max(1, round(seconds * 1000)) if seconds else 0


def version() -> str:
    """The library's version."""
    return _lib.oasiskv_version().decode()


def set_log_level(level: int) -> None:
    """0 debug, 1 info (default), 2 warning, 3 error, 4 off; the library logs to stderr."""
    call("set_log_level", level)


def crc32c(data, seed: int = 0) -> int:
    """CRC32C (RFC 3720) of anything with the buffer interface, continued from `seed` (0 to start)."""
    view = memoryview(data)
    if view.nbytes == 0:
        return seed
    # Through numpy, since ctypes gives no address of a read-only buffer. The array keeps the memory for the call.
    array = np.frombuffer(view.cast("B"), dtype=np.uint8)
    return _lib.oasiskv_crc32c(array.ctypes.data, array.size, seed)
