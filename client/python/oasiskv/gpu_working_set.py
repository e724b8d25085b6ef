"""The working set in GPU memory; oasiskv/gpu_working_set.h has the full contracts."""

import ctypes
import enum
from dataclasses import dataclass

import numpy as np

from oasiskv import native
from oasiskv.device import DeviceArray, address, device_array, stream_handle
from oasiskv.geometry import Geometry, Packing
from oasiskv.memory import whole_numbers
from oasiskv.native import Handle, call, get
from oasiskv.working_set import Source, options_to_c


class QueryType(enum.IntEnum):
    FLOAT32 = 0
    BFLOAT16 = 1
    FLOAT16 = 2


class Miss(enum.IntEnum):
    """What happens to blocks of the true top-K that are not resident."""

    DEMAND = 0  # fetched before attention
    DROP = 1  # left out
    REPORT = 2  # left out and counted


@dataclass(frozen=True)
class GpuPages:
    """One layer's pages in the engine's memory: addresses or arrays, strides in bytes."""

    k: object
    v: object  # None for latent packing
    page_stride: int
    head_stride: int
    token_stride: int
    table: object = None  # int32 [slots, K + 1]


@dataclass(frozen=True)
class Resolved:
    blocks: DeviceArray  # int32 [slots, kv_heads, K]: the true top-K, best first, -1 padding
    pages: DeviceArray  # int32 [max_rows, kv_heads, K]: the page that holds it, -1 missing
    missing: DeviceArray  # uint32 [max_rows]: blocks that no page holds


@dataclass(frozen=True)
class LayerView:
    pages: native.CGpuPages
    map: DeviceArray  # int32 [slots, kv_heads, K]: logical block, -1 empty
    predicted: DeviceArray  # int32 [slots, kv_heads, K]
    state: int  # address of oasiskv_gpu_slot_state[slots]


@dataclass(frozen=True)
class Snapshot:
    """Host copies of one slot and layer."""

    map: np.ndarray  # int32 [kv_heads, K]
    stamps: np.ndarray  # uint64 [kv_heads, K]
    predicted: np.ndarray  # int32 [kv_heads, K]
    pages: np.ndarray  # [kv_heads, K + 1, 2 (K, V), block_tokens, head_dim]
    complete: int
    local_tokens: int


class GpuWorkingSet(Handle):
    """Thread contract: one thread at a time.

    A step, on one stream of the engine:

        set_rows           when the batch has changed
        for each layer:    wait, append, [resolve], submit, attention over the pages, attention_done
        end_step

    All calls but admit, leave, the statistics and snapshot only enqueue, and can be captured in a CUDA graph (set_rows
    cannot). Arrays are in GPU memory or pinned host memory: DLPack, __cuda_array_interface__, oasiskv.DeviceArray, or an
    address (int) of rows that follow each other. Streams are ints or stream objects of torch or cupy. Calls raise
    InvalidArgument and WrongState; errors found on the GPU are raised by check().
    """

    _kind = "gpu_working_set"

    def __init__(self, geometry: Geometry, query_heads: int, *, device: int = 0, max_rows: int = 0,
                 max_new_tokens: int = 4096, pages=None, gather_ctas: int = 4, gather_threads: int = 1024,
                 priority: int = 0, local_only: bool = False, max_host_bytes: int = 0, predict_processors: int = 0,
                 **options):
        """`options`: those of WorkingSet. `pages`: one GpuPages per layer; None: the working set allocates them.
        `predict_processors`: multiprocessors for scores and selection alone (see foreground); 0: no such part.
        Raises Unsupported (a library without CUDA, or no GPU) and Capacity (not enough GPU memory)."""
        self.geometry = geometry
        self.query_heads = query_heads
        self.resident_blocks = options.get("resident_blocks", 128)
        self.max_requests = options.get("max_requests", 1)
        base = options_to_c(geometry, query_heads, **options)
        given = None
        if pages is not None:
            if len(pages) != geometry.layers:
                raise ValueError(f"pages has {len(pages)} layers; the geometry has {geometry.layers}")
            given = (native.CGpuPages * len(pages))(*(_pages_to_c(p) for p in pages))
        self._pages = pages
        super().__init__(get(ctypes.c_void_p, "gpu_working_set_create", ctypes.byref(native.CGpuWorkingSetOptions(
            base=ctypes.pointer(base), device=device, max_rows=max_rows, max_new_tokens=max_new_tokens,
            pages=None if given is None else ctypes.cast(given, ctypes.POINTER(native.CGpuPages)),
            gather_ctas=gather_ctas, gather_threads=gather_threads, priority=priority, local_only=int(local_only),
            max_host_bytes=max_host_bytes, predict_processors=predict_processors))))
        self.max_rows = max_rows or self.max_requests

    @property
    def fetch_cap(self) -> int:
        """Blocks that may change per head, layer and step."""
        return get(ctypes.c_uint32, "gpu_working_set_fetch_cap", self).value

    @property
    def foreground(self) -> tuple[int | None, int]:
        """(stream handle, count) of the multiprocessors that `predict_processors` leaves to the step; without that option
        (None, all of the device's). torch.cuda.ExternalStream takes the handle; it lives as long as this object."""
        out = get(native.CGpuForeground, "gpu_working_set_foreground_get", self)
        return out.stream, out.processors

    def admit(self, source: Source) -> int:
        """As WorkingSet.admit; waits for its work, beside running steps."""
        return get(ctypes.c_uint32, "gpu_working_set_admit", self, source).value

    def leave(self, slot: int) -> None:
        """Waits for what is enqueued on the step's stream, then frees the slot."""
        call("gpu_working_set_leave", self, slot)

    def set_rows(self, slots, stream=None) -> None:
        """The request slots of the following steps' rows, at most max_rows. Not in a capture."""
        rows = whole_numbers(slots, np.uint32, "slots")
        call("gpu_working_set_set_rows", self, rows.ctypes.data, len(rows), stream_handle(stream))

    def append(self, layer: int, keys, values=None, stream=None) -> None:
        """[rows, kv_heads, head_dim] in the geometry's type; None: the engine wrote the token into the pages itself."""
        keys_at, stride = self._tokens(keys, "keys")
        values_at, values_stride = self._tokens(None if self.geometry.packing == Packing.LATENT else values, "values")
        if values_at and values_stride != stride:
            raise ValueError(f"keys have a row stride of {stride} elements, values one of {values_stride}; they must be equal")
        call("gpu_working_set_append", self, layer, keys_at, values_at, stride, stream_handle(stream))

    def submit(self, layer: int, queries, stream=None, query_type: QueryType = None) -> None:
        """Queries that predict the next step: [rows, query_heads, head_dim]; give `query_type` with an address. They are
        read while later work of the stream runs: do not change them until the layer's next wait is done there."""
        call("gpu_working_set_submit", self, layer, *self._queries(queries, query_type), stream_handle(stream))

    def submit_topk(self, layer: int, topk, k: int = None, stream=None) -> None:
        """int32 [rows, kv_heads, k] in GPU memory, best first, -1 for padding; give `k` with an address. Do not change
        them, as for submit."""
        if not isinstance(topk, int):
            array = device_array(topk, "topk")
            if (array.kind, array.itemsize) != ("i", 4) or len(array.shape) != 3 or array.row_stride("topk") not in (
                    0, array.shape[1] * array.shape[2]):
                raise ValueError(f"topk is {array}; contiguous int32 [rows, kv_heads, k] is needed")
            topk, k = array.address, array.shape[2]
        elif k is None:
            raise ValueError("topk is an address, and k is not given; give k, the length of each list")
        call("gpu_working_set_submit_topk", self, layer, topk, k, stream_handle(stream))

    def attention_done(self, layer: int, stream=None) -> None:
        call("gpu_working_set_attention_done", self, layer, stream_handle(stream))

    def wait(self, layer: int, stream=None) -> None:
        call("gpu_working_set_wait", self, layer, stream_handle(stream))

    def resolve(self, layer: int, queries, policy: Miss = Miss.DEMAND, stream=None,
                query_type: QueryType = None) -> Resolved:
        """Exact mode: the true top-K of these queries, before attention. Valid until the next resolve."""
        out = get(native.CGpuResolved, "gpu_working_set_resolve", self, layer, *self._queries(queries, query_type),
                  policy, stream_handle(stream))
        lists = (self.geometry.kv_heads, self.resident_blocks)
        return Resolved(DeviceArray(out.blocks, (self.max_requests, *lists), "i", 4, owner=self.lease()),
                        DeviceArray(out.pages, (self.max_rows, *lists), "i", 4, owner=self.lease()),
                        DeviceArray(out.missing, (self.max_rows,), "u", 4, owner=self.lease()))

    def sample_agreement(self, layer: int, queries, stream=None, query_type: QueryType = None) -> None:
        """Capped mode: compares the top-K of these true queries with the prediction that was made for this step."""
        call("gpu_working_set_sample_agreement", self, layer, *self._queries(queries, query_type),
             stream_handle(stream))

    def end_step(self, stream=None) -> None:
        call("gpu_working_set_end_step", self, stream_handle(stream))

    def view(self, layer: int) -> LayerView:
        out = get(native.CGpuLayerView, "gpu_working_set_view", self, layer)
        shape = (self.max_requests, self.geometry.kv_heads, self.resident_blocks)
        return LayerView(out.pages, DeviceArray(out.map, shape, "i", 4, owner=self.lease()),
                         DeviceArray(out.predicted, shape, "i", 4, owner=self.lease()), out.state)

    def rows(self) -> DeviceArray:
        """int32 [max_rows] request slots of the step's rows, at a fixed address."""
        out = get(native.CGpuRows, "gpu_working_set_rows_get", self)
        return DeviceArray(out.slots, (out.max_rows,), "i", 4, owner=self.lease())

    def stats(self, slot: int = None) -> dict:
        """Counters over all requests, or of one; oasiskv_working_set_stats in oasiskv.h has their names."""
        if slot is None:
            return get(native.CWorkingSetStats, "gpu_working_set_stats_get", self).as_dict()
        return get(native.CWorkingSetStats, "gpu_working_set_request_stats_get", self, slot).as_dict()

    def check(self) -> None:
        """Raises the first error on the GPU or of a remote source since clear_error()."""
        call("gpu_working_set_error", self)

    def clear_error(self) -> None:
        call("gpu_working_set_clear_error", self)

    def snapshot(self, layer: int, slot: int) -> Snapshot:
        """Host copies of one slot and layer; waits for the GPU."""
        g, k = self.geometry, self.resident_blocks
        arrays = {
            "map": np.empty((g.kv_heads, k), np.int32),
            "stamps": np.empty((g.kv_heads, k), np.uint64),
            "predicted": np.empty((g.kv_heads, k), np.int32),
            "pages": np.empty((g.kv_heads, k + 1, *g.entry_shape), g.dtype),
        }
        out = native.CGpuSnapshot(**{name: array.ctypes.data for name, array in arrays.items()})
        call("gpu_working_set_snapshot", self, layer, slot, ctypes.byref(out))
        return Snapshot(**arrays, complete=out.state.complete, local_tokens=out.state.local_tokens)

    def _tokens(self, value, what: str):
        if value is None or isinstance(value, int):
            return value, 0
        array = device_array(value, what)
        if array.itemsize != self.geometry.dtype.itemsize or array.shape[1:] != (
                self.geometry.kv_heads, self.geometry.head_dim):
            raise ValueError(f"{what} is {array}; [rows, {self.geometry.kv_heads}, {self.geometry.head_dim}] of "
                             f"{self.geometry.dtype.itemsize}-byte elements is needed")
        return array.address, array.row_stride(what)

    def _queries(self, value, query_type):
        if isinstance(value, int):
            return value, QueryType.FLOAT32 if query_type is None else query_type, 0
        array = device_array(value, "queries")
        found = {("f", 4): QueryType.FLOAT32, ("bf", 2): QueryType.BFLOAT16, ("f", 2): QueryType.FLOAT16}.get(
            (array.kind, array.itemsize))
        query_type = found if query_type is None else query_type
        if query_type is None or array.shape[1:] != (self.query_heads, self.geometry.head_dim):
            raise ValueError(f"queries is {array}; [rows, {self.query_heads}, {self.geometry.head_dim}] of float32, "
                             "bfloat16 or float16 is needed")
        return array.address, query_type, array.row_stride("queries")


def _pages_to_c(pages: GpuPages) -> native.CGpuPages:
    return native.CGpuPages(k=address(pages.k, "pages.k"), v=address(pages.v, "pages.v"), page_stride=pages.page_stride,
                            head_stride=pages.head_stride, token_stride=pages.token_stride,
                            table=address(pages.table, "pages.table"))
