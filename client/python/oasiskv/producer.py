"""The prefill side: writes one sequence."""

import ctypes

import numpy as np

from oasiskv import native
from oasiskv.geometry import Combine, Geometry, Packing, bound_weight_to_c
from oasiskv.memory import as_array
from oasiskv.native import Handle, call, text


class Producer(Handle):
    """Thread contract: one thread at a time. Made by Client.open. Closing it before seal() aborts the sequence.

    Besides what is said below, every call may raise Stale, LeaseExpired, WrongState and PeerLost.
    """

    _kind = "producer"

    def __init__(self, pointer, geometry: Geometry):
        super().__init__(pointer)
        self.geometry = geometry

    def extend(self, blocks: int) -> None:
        """Reserves `blocks` more frames. Raises Capacity; then nothing has changed."""
        call("producer_extend", self, blocks)

    def write_tokens(self, layer: int, first_token: int, keys: np.ndarray, values: np.ndarray = None) -> None:
        """Keys and values [tokens, kv_heads, head_dim] of consecutive tokens of one layer, in the geometry's dtype.

        Tokens and heads may have any stride; head_dim must be contiguous. For latent packing keys are [tokens, head_dim]
        and there are no values. Tokens of a layer come in order. Raises InvalidArgument (out of order), OutOfRange
        (beyond the reserved blocks), ValueError (shape or dtype).
        """
        tokens = keys.shape[0]
        call("producer_write_tokens", self, layer, first_token, tokens, self._view(keys, tokens, "keys"),
             self._view(values, tokens, "values"))

    def write_tokens_at(self, layer: int, first_token: int, tokens: int, keys: int, values: int, token_stride: int,
                        head_stride: int) -> None:
        """As write_tokens, from addresses; strides in bytes."""
        call("producer_write_tokens", self, layer, first_token, tokens,
             native.CKvView(keys, token_stride, head_stride), native.CKvView(values, token_stride, head_stride))

    def commit_written(self) -> None:
        """Publishes every block whose tokens are all written."""
        call("producer_commit_written", self)

    def commit(self, first_layer: int, layer_count: int, first_block: int, block_count: int) -> None:
        """Publishes layers x blocks. Raises NotCommitted when one of them is not written whole."""
        call("producer_commit", self, first_layer, layer_count, first_block, block_count)

    def seal(self, token_count: int, *, first_queries: np.ndarray = None, top_k: int = 128,
             combine: Combine = Combine.MAX, bound_weight: float = 1.0, blob: bytes = b"") -> None:
        """Commits what is left and ends writing; the producer has no more use after it.

        `first_queries`, float32 [layers, query_heads, head_dim]: the first decode step's queries after RoPE. From them each
        head's top-K is computed and published. `combine` and `bound_weight` (0 to 1) should be the same as in the decode
        side's working set. Raises NotCommitted when tokens are missing, and InvalidArgument.
        """
        spec = native.CSealSpec(
            token_count=token_count, combine=combine, bound_weight=bound_weight_to_c(bound_weight), top_k=top_k,
            blob=blob, blob_size=len(blob),
        )
        if first_queries is not None:
            queries = as_array(first_queries, np.float32, (self.geometry.layers, None, self.geometry.head_dim),
                               "first_queries")
            spec.first_queries = queries.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            spec.query_heads = queries.shape[1]
        call("producer_seal", self, ctypes.byref(spec))

    def abort(self, reason: str = "") -> None:
        """Throws the sequence away."""
        call("producer_abort", self, text(reason, "reason"))

    def _view(self, array, tokens: int, what: str) -> native.CKvView:
        g = self.geometry
        if g.packing == Packing.LATENT:
            if what == "values":
                if array is not None:
                    raise ValueError("latent packing has no values")
                return native.CKvView(None, 0, 0)
            array = array[:, None, :] if array.ndim == 2 else array
        if array is None:
            raise ValueError(f"{what} are missing")
        if array.shape != (tokens, g.kv_heads, g.head_dim):
            raise ValueError(f"{what} has shape {list(array.shape)}; [{tokens}, {g.kv_heads}, {g.head_dim}] is needed")
        if array.dtype != g.dtype:
            raise ValueError(f"{what} has dtype {array.dtype}; {g.dtype} is needed")
        if array.strides[2] != array.itemsize:
            raise ValueError(f"{what}: the last axis must be contiguous")
        return native.CKvView(array.ctypes.data, array.strides[0], array.strides[1])
