"""What the decode worker needs from sparse attention, and how a decode step uses it.

`SparseAttention` is the library's side: which blocks are resident, and getting the predicted ones
there. `EnginePages` is the engine's side: the memory that holds resident blocks and the active
block. `SparseAttend` runs both behind the same callback that full attention implements.

Per layer and step the order of calls is fixed:

    wait      what was submitted for this layer in the step before has arrived in the pages
    resolve   the true query: exact mode brings in what its top-K lacks; both modes count how well
              the prediction agreed
    append    the token's own KV; a completed block becomes a candidate from the next call on
    submit    the query that predicts the next step; its transfer starts behind attention_done
    (attention over the pages and the active block)
    attention_done
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from attention import attend_rows


@dataclass(frozen=True)
class SparseConfig:
    mode: str  # "capped" or "exact"
    ratio: float  # at most ratio * budget_blocks fetched per head, layer and step
    budget_blocks: int  # K, resident blocks per layer and KV head


@dataclass(frozen=True)
class SparseStats:
    """Counts of one run, admission included; bytes are what crossed from the daemon."""

    admission_bytes: int
    decode_bytes: int
    predicted: int  # blocks asked for by predictions, over heads, layers and steps
    hits: int  # of these, already resident
    admitted: int
    refused: int  # by the cap
    late: int
    agreement: float  # share of the true top-K that the prediction held
    grant_checks: int
    stale_reads: int


class EnginePages:
    """The engine's memory: `slots` pages per layer and KV head, and the active block.

    keys, values: float16 [layers, kv_heads, slots, block_tokens, head_dim], written by the library;
    the active block is this side's own. Thread contract: gather() only between wait() and
    attention_done() of its layer, when no transfer writes that layer's pages.
    """

    def __init__(self, layers: int, kv_heads: int, slots: int, block_tokens: int, head_dim: int):
        shape = (layers, kv_heads, slots, block_tokens, head_dim)
        self.keys = np.zeros(shape, dtype=np.float16)
        self.values = np.zeros(shape, dtype=np.float16)
        active = (layers, kv_heads, block_tokens, head_dim)
        self._active_keys = np.zeros(active, dtype=np.float16)
        self._active_values = np.zeros(active, dtype=np.float16)
        self._active_tokens = [0] * layers
        self._heads = np.arange(kv_heads)[:, None]
        self._block_tokens = block_tokens

    def append(self, layer: int, key: np.ndarray, value: np.ndarray) -> None:
        """The token's own pair, float16 [kv_heads, head_dim], into the active block."""
        at = self._active_tokens[layer] % self._block_tokens  # a full block is left to the library
        self._active_keys[layer, :, at] = key
        self._active_values[layer, :, at] = value
        self._active_tokens[layer] = at + 1

    def gather(self, layer: int, blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values in ascending position, float32 [kv_heads, tokens, head_dim].

        blocks: int [kv_heads, slots], the block each page holds or -1. Every head must hold equally
        many: a head with free pages has all candidates resident, and then so have its peers.
        """
        order = np.argsort(blocks, axis=1, kind="stable")
        free = np.count_nonzero(blocks < 0, axis=1)
        if np.any(free != free[0]):
            raise RuntimeError(f"layer {layer}: KV heads hold different numbers of blocks: {free}")
        order = order[:, free[0] :]
        resident = order.shape[1] * self._block_tokens
        active = self._active_tokens[layer]
        result = []
        for pages, tail in (
            (self.keys[layer], self._active_keys[layer]),
            (self.values[layer], self._active_values[layer]),
        ):
            kv_heads, _, _, head_dim = pages.shape
            out = np.empty((kv_heads, resident + active, head_dim), dtype=np.float32)
            out[:, :resident] = pages[self._heads, order].reshape(kv_heads, resident, head_dim)
            out[:, resident:] = tail[:, :active]
            result.append(out)
        return result[0], result[1]


class SparseAttention(ABC):
    """One sequence's working set in decode; see the top of the file for the order of calls."""

    pages: EnginePages

    @abstractmethod
    def wait(self, layer: int) -> None: ...

    @abstractmethod
    def resolve(self, layer: int, q_true: np.ndarray) -> None:
        """q_true: float32 [query_heads, head_dim]."""

    @abstractmethod
    def append(self, layer: int, key: np.ndarray, value: np.ndarray) -> None:
        """float16 [kv_heads, head_dim] each."""

    @abstractmethod
    def submit(self, layer: int, q_predicted: np.ndarray) -> None:
        """q_predicted: float32 [query_heads, head_dim]."""

    @abstractmethod
    def resident_blocks(self, layer: int) -> np.ndarray:
        """int32 [kv_heads, slots]: the block that each page holds, -1 where free."""

    @abstractmethod
    def attention_done(self, layer: int) -> None: ...

    @abstractmethod
    def stats(self) -> SparseStats: ...

    @abstractmethod
    def close(self) -> None:
        """Ends what is in flight and lets go of the sequence."""


class SparseAttend:
    """The attention callback over a `SparseAttention`; `observe` sees every layer's resident pages
    (layer, blocks) before they are used."""

    def __init__(self, sparse: SparseAttention, observe=None):
        self._sparse = sparse
        self._observe = observe

    def __call__(self, layer, q, k_new, v_new) -> np.ndarray:
        sparse = self._sparse
        sparse.wait(layer)
        sparse.resolve(layer, q[0])
        blocks = sparse.resident_blocks(layer)
        sparse.append(layer, k_new[0], v_new[0])
        sparse.pages.append(layer, k_new[0], v_new[0])
        sparse.submit(layer, q[-1])  # the draft row's query, or the only row's
        if self._observe is not None:
            self._observe(layer, blocks)
        keys, values = sparse.pages.gather(layer, blocks)
        out = attend_rows(q, keys, values, k_new, v_new)
        sparse.attention_done(layer)
        return out
