"""The decode side of one attached sequence."""

import ctypes

import numpy as np

from oasiskv import native
from oasiskv.geometry import Geometry
from oasiskv.memory import address_of, whole_numbers
from oasiskv.native import Handle, call, get, milliseconds

# The C structure oasiskv_entry_read.
ENTRY_READ = np.dtype([("block", "<u4"), ("layer", "<u4"), ("head", "<u4"), ("into", "<u8")], align=True)


class Fetch(Handle):
    """Thread contract: one thread at a time. A batch in flight; after wait(), cancel() or close() nothing writes to its
    buffers any more."""

    _kind = "fetch"

    def __init__(self, pointer, memory):
        super().__init__(pointer)
        self._memory = memory  # kept alive as long as the library may write to it

    def done(self) -> bool:
        return bool(get(ctypes.c_uint32, "fetch_done", self).value)

    def wait(self) -> None:
        """Returns when all bytes are there and the grant was still valid after that. Raises as Reader.fetch does."""
        call("fetch_wait", self)

    def cancel(self) -> None:
        call("fetch_cancel", self)


class Reader(Handle):
    """Thread contract: safe for concurrent use. Made by Client.attach. Timeouts are seconds, 0: the client's.

    Fetches raise NotCommitted, OutOfRange, Foreign (a head that is not attached), Stale, LeaseExpired, DeadlineExceeded,
    PeerLost and ChecksumMismatch; after an error the destination holds nothing of use. Heads are counted within the shard.
    `into` is a writable C-contiguous buffer or an address (int); None: a new array. Fetches return it.
    """

    _kind = "reader"

    def __init__(self, pointer, geometry: Geometry):
        super().__init__(pointer)
        self.geometry = geometry
        info = get(native.CReaderInfo, "reader_info_get", self)
        self.sealed = bool(info.sealed)
        self.token_count = info.token_count
        self.blocks = info.blocks
        self.first_head = info.first_head
        self.head_count = info.head_count
        k = info.first_topk_k
        shape = (geometry.layers, geometry.kv_heads, k)
        #: int32 [layers, kv_heads of the shard, k], best first, -1 for none; None when the producer gave none.
        self.first_topk = np.ctypeslib.as_array(info.first_topk, shape).copy() if k else None
        self.blob = ctypes.string_at(info.blob, info.blob_size) if info.blob_size else b""

    def entries_array(self, count: int) -> np.ndarray:
        """A new array [count, 2 (K, V), block_tokens, head_dim] for a fetch (latent packing: 1 instead of 2)."""
        return np.empty((count, *self.geometry.entry_shape), dtype=self.geometry.dtype)

    def fetch(self, blocks, layers, heads, into=None, timeout: float = 0) -> np.ndarray:
        """Fetches entry (blocks[i], layers[i], heads[i]) to into[i], shape as entries_array; scalars are broadcast."""
        reads, into = self._reads(blocks, layers, heads, into)
        call("reader_fetch", self, reads.ctypes.data, len(reads), milliseconds(timeout))
        return into

    def fetch_start(self, blocks, layers, heads, into=None, timeout: float = 0):
        """Starts what fetch does, and returns (Fetch, into) at once."""
        reads, into = self._reads(blocks, layers, heads, into)
        out = get(ctypes.c_void_p, "reader_fetch_start", self, reads.ctypes.data, len(reads), milliseconds(timeout))
        return Fetch(out, into), into

    def fetch_layers(self, block: int, first_layer: int = 0, layers: int = 0, into=None, timeout: float = 0):
        """Fetches [layers, head_count, 2 (K, V), block_tokens, head_dim] of one block; layers 0: all from first_layer."""
        layers = layers or self.geometry.layers - first_layer
        if into is None:
            into = self.entries_array(layers * self.head_count)
        need = layers * self.head_count * self.geometry.entry_bytes
        call("reader_fetch_layers", self, block, first_layer, layers, address_of(into, need, True, "into"),
             milliseconds(timeout))
        if isinstance(into, np.ndarray) and into.nbytes == need:
            return into.reshape(layers, self.head_count, *self.geometry.entry_shape)
        return into

    def fetch_summaries(self, first_block: int, blocks: int, into=None, timeout: float = 0) -> np.ndarray:
        """Fetches key summaries [blocks, layers, head_count, 2 (min, max), head_dim]."""
        g = self.geometry
        if into is None:
            into = np.empty((blocks, g.layers, self.head_count, 2, g.head_dim), dtype=g.dtype)
        need = blocks * g.layers * self.head_count * g.summary_bytes
        call("reader_fetch_summaries", self, first_block, blocks, address_of(into, need, True, "into"),
             milliseconds(timeout))
        return into

    def fetch_topk(self, layer: int, head: int, blocks, into=None, timeout: float = 0) -> np.ndarray:
        """Fetches blocks[i] of one layer and head to into[i], shape as entries_array. -1 is padding, for which nothing is
        written; a block named twice is fetched once. Another number out of range raises OutOfRange with its index."""
        blocks = whole_numbers(blocks, np.int32, "blocks")
        if into is None:
            into = np.zeros((len(blocks), *self.geometry.entry_shape), dtype=self.geometry.dtype)
        stride = self.geometry.entry_bytes
        call("reader_fetch_topk", self, layer, head, blocks.ctypes.data, len(blocks),
             address_of(into, stride * len(blocks), True, "into"), stride, milliseconds(timeout))
        return into

    def health(self) -> None:
        """Raises LeaseExpired, Stale or PeerLost when the grant cannot be used now."""
        call("reader_health", self)

    def release(self) -> None:
        """Gives the grant back now; fetches after it raise Stale."""
        call("reader_release", self)

    def _reads(self, blocks, layers, heads, into):
        named = (("blocks", blocks), ("layers", layers), ("heads", heads))
        blocks, layers, heads = np.broadcast_arrays(*(whole_numbers(array, np.uint32, name) for name, array in named))
        count, size = blocks.size, self.geometry.entry_bytes
        if into is None:
            into = self.entries_array(count)
        reads = np.zeros(count, dtype=ENTRY_READ)
        reads["block"], reads["layer"], reads["head"] = blocks, layers, heads
        base = address_of(into, count * size, True, "into")
        reads["into"] = base + np.arange(count, dtype=np.uint64) * np.uint64(size)
        return reads, into
