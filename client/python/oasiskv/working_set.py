"""The decode side's working set; oasiskv/working_set.h has the order of calls in a step."""

import contextlib
import ctypes
import enum
from dataclasses import dataclass

import numpy as np

from oasiskv import native
from oasiskv.geometry import Combine, Geometry, Packing, bound_weight_to_c
from oasiskv.memory import as_array, view_at, whole_numbers
from oasiskv.native import Handle, call, get, milliseconds


class HostCache(enum.IntEnum):
    AUTO = 0  # keep fetched entries unless they are read over shm
    ALWAYS = 1
    NEVER = 2


class Mode(enum.IntEnum):
    CAPPED = 0
    EXACT = 1


class Late(enum.IntEnum):
    WAIT = 0
    SKIP = 1


class Loss(enum.IntEnum):
    FAIL = 0
    DEGRADE = 1


_SUMMARIES = {"as_keys": 0, "fp8": 1}


class Source(Handle):
    """Thread contract: safe for concurrent use.

    One request's KV: the readers of one or several shards, joined in order into a decode rank's heads. It stays attached
    when the readers are closed. host_cache_bytes: limit of fetched entries kept in host memory; 0: 4 GiB.
    Raises InvalidArgument and GeometryMismatch when the readers do not fit together.
    """

    _kind = "source"

    def __init__(self, *readers, host_cache: HostCache = HostCache.AUTO, host_cache_bytes: int = 0):
        options = native.CSourceOptions(host_cache=host_cache, host_cache_bytes=host_cache_bytes)
        with contextlib.ExitStack() as stack:
            pointers = [stack.enter_context(reader.in_use()) for reader in readers]
            super().__init__(get(ctypes.c_void_p, "source_make", (ctypes.c_void_p * len(readers))(*pointers), len(readers),
                                 ctypes.byref(options)))

    def stats(self) -> dict:
        """Counters: remote_bytes, remote_entries, host_hits, host_bytes, written_back."""
        return get(native.CSourceStats, "source_stats_get", self).as_dict()


def options_to_c(geometry: Geometry, query_heads: int, *, resident_blocks: int = 128, fetch_ratio: float = 0.05,
                 mode: Mode = Mode.CAPPED, combine: Combine = Combine.MAX, bound_weight: float = 1.0,
                 late: Late = Late.WAIT, loss: Loss = Loss.FAIL, late_deadline: float = 5.0, max_requests: int = 1,
                 max_blocks: int = 8192, summaries: str = "as_keys", ranked_blocks: int = 0):
    """The options of every backend of the working set, as WorkingSet documents them."""
    return native.CWorkingSetOptions(
        geometry=ctypes.pointer(geometry.to_c()), query_heads=query_heads, resident_blocks=resident_blocks,
        fetch_ratio=fetch_ratio if fetch_ratio > 0 else -1.0, mode=mode, combine=combine, late=late, loss=loss,
        late_deadline_ms=max(1, milliseconds(late_deadline, "late_deadline")), max_requests=max_requests, max_blocks=max_blocks,
        bound_weight=bound_weight_to_c(bound_weight), summaries=_summaries_to_c(summaries), ranked_blocks=ranked_blocks,
    )


def _summaries_to_c(summaries: str) -> int:
    if summaries not in _SUMMARIES:
        raise ValueError(f"summaries is {summaries!r}; it must be one of {', '.join(map(repr, _SUMMARIES))}")
    return _SUMMARIES[summaries]


@dataclass(frozen=True)
class ResidentView:
    """The pages of one request and layer. The arrays are the working set's own memory: valid and unchanged from wait()
    to attention_done() of that layer."""

    pages: np.ndarray  # [kv_heads, K + 1, 2 (K, V), block_tokens, head_dim]; page K is the local block
    map: np.ndarray  # int32 [kv_heads, K]: the logical block of each page, -1 empty
    local_tokens: int  # valid tokens of the local block
    local_block: int


class WorkingSet(Handle):
    """Thread contract: one thread drives the steps.

    resident_blocks: K, pages per layer and head. fetch_ratio: share of the ranked blocks that may change per step (capped
    mode). ranked_blocks: blocks that a prediction ranks, at most K (0: K); the other pages keep blocks ranked before.
    summaries: "as_keys", or "fp8" for E4M3, rounded outward (half the memory of BF16; head_dim a multiple of 16).
    late_deadline: seconds. max_blocks: a request's blocks, decoded ones included.

    In the calls, slots are the rows' request slots from admit(); queries are float32 [rows, query_heads, head_dim]; keys
    and values are [rows, kv_heads, head_dim] in the geometry's dtype. They raise InvalidArgument and WrongState (wrong
    order of calls), wait and resolve also what the source raises.
    """

    _kind = "working_set"

    def __init__(self, geometry: Geometry, query_heads: int, *, resident_blocks: int = 128, fetch_ratio: float = 0.05,
                 mode: Mode = Mode.CAPPED, combine: Combine = Combine.MAX, bound_weight: float = 1.0,
                 late: Late = Late.WAIT, loss: Loss = Loss.FAIL, late_deadline: float = 5.0, max_requests: int = 1,
                 max_blocks: int = 8192, summaries: str = "as_keys", ranked_blocks: int = 0):
        self.geometry = geometry
        self.query_heads = query_heads
        self.resident_blocks = resident_blocks
        options = options_to_c(
            geometry, query_heads, resident_blocks=resident_blocks, fetch_ratio=fetch_ratio, mode=mode, combine=combine,
            bound_weight=bound_weight, late=late, loss=loss, late_deadline=late_deadline, max_requests=max_requests,
            max_blocks=max_blocks, summaries=summaries, ranked_blocks=ranked_blocks,
        )
        super().__init__(get(ctypes.c_void_p, "working_set_create", ctypes.byref(options)))

    @property
    def fetch_cap(self) -> int:
        """Blocks that may change per head, layer and step."""
        return get(ctypes.c_uint32, "working_set_fetch_cap", self).value

    def admit(self, source: Source) -> int:
        """Pulls summaries and the first working set; returns the request's slot. Raises Capacity (no free slot, or too
        many blocks), GeometryMismatch, and what the source raises."""
        return get(ctypes.c_uint32, "working_set_admit", self, source).value

    def leave(self, slot: int) -> None:
        """Ends a request: waits for its transfers and frees the slot."""
        call("working_set_leave", self, slot)

    def wait(self, layer: int, slots) -> None:
        """Waits for the transfer that the step before submitted for this step."""
        rows = _slots(slots)
        call("working_set_wait", self, layer, rows.ctypes.data, len(rows))

    def append(self, layer: int, slots, keys: np.ndarray, values: np.ndarray = None) -> None:
        """Adds each row's new token to its local block; no values for latent packing."""
        rows = _slots(slots)
        g = self.geometry
        shape = (len(rows), g.kv_heads, g.head_dim)
        keys = _same_dtype(keys, g, shape, "keys")
        if g.packing == Packing.LATENT:
            values_address = None
        else:
            values = _same_dtype(values, g, shape, "values")
            values_address = values.ctypes.data
        call("working_set_append", self, layer, rows.ctypes.data, len(rows), keys.ctypes.data, values_address)

    def submit(self, layer: int, slots, queries: np.ndarray) -> None:
        """Predicts the next step with these queries, and starts its selection."""
        self._with_queries("working_set_submit", layer, slots, queries)

    def submit_topk(self, layer: int, slots, topk: np.ndarray) -> None:
        """As submit, with ready top-K lists: int32 [rows, kv_heads, k], -1 for padding."""
        rows = _slots(slots)
        topk = as_array(topk, np.int32, (len(rows), self.geometry.kv_heads, None), "topk")
        call("working_set_submit_topk", self, layer, rows.ctypes.data, len(rows), topk.ctypes.data, topk.shape[2])

    def resolve(self, layer: int, slots, queries: np.ndarray) -> None:
        """Exact mode: makes the true top-K of these queries resident now."""
        self._with_queries("working_set_resolve", layer, slots, queries)

    def sample_agreement(self, layer: int, slots, queries: np.ndarray) -> None:
        """Capped mode: compares the top-K of these true queries with the prediction that was made for this step."""
        self._with_queries("working_set_sample_agreement", layer, slots, queries)

    def attention_done(self, layer: int, slots) -> None:
        """From here on the transfer for the next step may overwrite pages."""
        rows = _slots(slots)
        call("working_set_attention_done", self, layer, rows.ctypes.data, len(rows))

    def view(self, layer: int, slot: int) -> ResidentView:
        """The pages that attention reads."""
        out = get(native.CResidentView, "working_set_view", self, layer, slot)
        g, k = self.geometry, self.resident_blocks
        return ResidentView(
            pages=view_at(out.pages, (g.kv_heads, k + 1, *g.entry_shape), g.dtype, self.lease()),
            map=view_at(out.map, (g.kv_heads, k), np.int32, self.lease()),
            local_tokens=out.local_tokens,
            local_block=out.local_block,
        )

    def stats(self) -> dict:
        """Counters over all requests; oasiskv_working_set_stats in oasiskv.h has their names."""
        return get(native.CWorkingSetStats, "working_set_stats_get", self).as_dict()

    def _with_queries(self, name: str, layer: int, slots, queries) -> None:
        rows = _slots(slots)
        queries = as_array(queries, np.float32, (len(rows), self.query_heads, self.geometry.head_dim), "queries")
        call(name, self, layer, rows.ctypes.data, len(rows), queries.ctypes.data)


def _slots(slots) -> np.ndarray:
    return whole_numbers(slots, np.uint32, "slots")


def _same_dtype(array: np.ndarray, geometry: Geometry, shape, what: str) -> np.ndarray:
    """`array`, C-contiguous. Shape and dtype must match: a silent conversion of KV would change its bytes."""
    if array is None:
        raise ValueError(f"{what} are missing")
    if array.dtype != geometry.dtype:
        raise ValueError(f"{what} has dtype {array.dtype}; {geometry.dtype} is needed")
    return as_array(array, geometry.dtype, shape, what)
