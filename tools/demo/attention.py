"""Attention arithmetic that full attention and the sparse path share.

KV is kept as IEEE float16 on both paths: keys (after RoPE) and values are rounded before attention
reads them. The decode function takes keys and values in ascending token position, from either path,
so that equal tokens give equal bits: with every block resident the sparse path computes exactly what
full attention computes.
"""

from typing import Protocol

import numpy as np


class Attend(Protocol):
    """How one decode step attends at one layer; row 0 is the real token, row 1 (if any) a draft.

    q: float32 [rows, query_heads, head_dim]; k_new, v_new: float16 [rows, kv_heads, head_dim], the
    rows' own keys and values. Row 0's pair is kept; a draft's is dropped after the step.
    Returns float32 [rows, query_heads, head_dim].
    """

    def __call__(
        self, layer: int, q: np.ndarray, k_new: np.ndarray, v_new: np.ndarray
    ) -> np.ndarray: ...


def attend_rows(
    q: np.ndarray, keys: np.ndarray, values: np.ndarray, k_new: np.ndarray, v_new: np.ndarray
) -> np.ndarray:
    """Decode attention of a few rows over the same tokens.

    keys, values: float32 [kv_heads, tokens, head_dim], row 0's own pair last. Row 0 attends all of
    them; row r > 0 also attends its own pair. Each row is computed on its own, so row 0's result
    does not depend on whether a draft runs beside it.
    """
    rows, query_heads, head_dim = q.shape
    kv_heads = keys.shape[0]
    scale = np.float32(head_dim**-0.5)
    grouped = q.reshape(rows, kv_heads, query_heads // kv_heads, head_dim)
    transposed = keys.transpose(0, 2, 1)
    out = np.empty_like(grouped)
    for row in range(rows):
        scores = np.matmul(grouped[row], transposed)
        if row > 0:
            own = np.matmul(grouped[row], k_new[row].astype(np.float32)[:, :, None])
            scores = np.concatenate([scores, own], axis=2)
        scores *= scale
        scores -= scores.max(axis=2, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=2, keepdims=True)
        tokens = keys.shape[1]
        out[row] = np.matmul(scores[:, :, :tokens], values)
        if row > 0:
            out[row] += scores[:, :, tokens:] * v_new[row].astype(np.float32)[:, None, :]
    return out.reshape(rows, query_heads, head_dim)


def attend_prefill(
    q: np.ndarray, keys: np.ndarray, values: np.ndarray, start: int, rows_at_once: int = 256
) -> np.ndarray:
    """Causal attention of the tokens start, start + 1, ... over keys and values from 0 on.

    q: float32 [rows, query_heads, head_dim]; keys, values: float32 [kv_heads, >= start + rows,
    head_dim]. Works on `rows_at_once` queries of one KV head at a time: 25 MiB of scores at 8K.
    """
    rows, query_heads, head_dim = q.shape
    kv_heads = keys.shape[0]
    group = query_heads // kv_heads
    scale = np.float32(head_dim**-0.5)
    out = np.empty_like(q)
    for first in range(0, rows, rows_at_once):
        last = min(first + rows_at_once, rows)
        end = start + last
        future = np.triu(np.ones((last - first, last - first), dtype=bool), k=1)
        for head in range(kv_heads):
            queries = slice(head * group, (head + 1) * group)
            block = q[first:last, queries].swapaxes(0, 1) * scale
            scores = np.matmul(block, keys[head, :end].T)
            scores[:, :, start + first :][:, future] = -np.inf
            scores -= scores.max(axis=2, keepdims=True)
            np.exp(scores, out=scores)
            total = scores.sum(axis=2, keepdims=True)
            mixed = np.matmul(scores, values[head, :end]) / total
            out[first:last, queries] = mixed.swapaxes(0, 1)
    return out


class FullAttention:
    """Every token's KV in this process's memory; the baseline, and the prefill's own copy.

    Thread contract: none. Bytes are float16 (`keys`, `values`: [layers, kv_heads, capacity,
    head_dim]); a float32 copy of the same rounded numbers saves converting them at each step.
    """

    def __init__(self, layers: int, kv_heads: int, head_dim: int, capacity: int):
        shape = (layers, kv_heads, capacity, head_dim)
        self.keys = np.zeros(shape, dtype=np.float16)
        self.values = np.zeros(shape, dtype=np.float16)
        self._keys32 = np.zeros(shape, dtype=np.float32)
        self._values32 = np.zeros(shape, dtype=np.float32)
        self._lengths = [0] * layers

    def length(self, layer: int) -> int:
        return self._lengths[layer]

    def extend(self, layer: int, keys: np.ndarray, values: np.ndarray) -> None:
        """Appends float16 [rows, kv_heads, head_dim]."""
        start = self._lengths[layer]
        end = start + keys.shape[0]
        if end > self.keys.shape[2]:
            raise ValueError(f"{end} tokens do not fit into a cache of {self.keys.shape[2]}")
        for target, new in ((self.keys, keys), (self._keys32, keys)):
            target[layer, :, start:end] = new.swapaxes(0, 1)
        for target, new in ((self.values, values), (self._values32, values)):
            target[layer, :, start:end] = new.swapaxes(0, 1)
        self._lengths[layer] = end

    def truncate(self, tokens: int) -> None:
        """Drops all but the first `tokens` tokens, in every layer."""
        self._lengths = [min(length, tokens) for length in self._lengths]

    def prefill(self, layer, q, k_new, v_new) -> np.ndarray:
        start = self._lengths[layer]
        self.extend(layer, k_new, v_new)
        return attend_prefill(q, self._keys32[layer], self._values32[layer], start)

    def __call__(self, layer, q, k_new, v_new) -> np.ndarray:
        self.extend(layer, k_new[:1], v_new[:1])
        length = self._lengths[layer]
        keys = self._keys32[layer, :, :length]
        values = self._values32[layer, :, :length]
        return attend_rows(q, keys, values, k_new, v_new)
