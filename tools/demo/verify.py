"""Checks what arrived against the prefill's own copy, independently of the library's checksums.

The prefill worker computes the CRC32C of every entry (K then V of one block, layer and KV head) and
of every summary from its own arrays. The decode worker compares each entry the first time it is in a
resident page of a run, and all summaries once.
"""

import numpy as np
import oasiskv


class WrongBytes(Exception):
    """Bytes arrived that differ from what the prefill wrote."""


def as_entries(keys: np.ndarray, values: np.ndarray, block_tokens: int) -> np.ndarray:
    """float16 [kv_heads, tokens, head_dim] twice -> [kv_heads, blocks, 2, block_tokens, head_dim]."""
    kv_heads, tokens, head_dim = keys.shape
    shape = (kv_heads, tokens // block_tokens, block_tokens, head_dim)
    return np.ascontiguousarray(np.stack([keys.reshape(shape), values.reshape(shape)], axis=2))


def entry_crcs(keys: np.ndarray, values: np.ndarray, block_tokens: int) -> np.ndarray:
    """[layers, kv_heads, tokens, head_dim] twice -> uint32 [layers, kv_heads, blocks]."""
    crcs = []
    for layer_keys, layer_values in zip(keys, values):
        entries = as_entries(layer_keys, layer_values, block_tokens)
        crcs.append([[oasiskv.crc32c(entry) for entry in head] for head in entries])
    return np.array(crcs, dtype=np.uint32)


def summary_crcs(keys: np.ndarray, block_tokens: int) -> np.ndarray:
    """[layers, kv_heads, tokens, head_dim] -> uint32 [blocks] over [layers, kv_heads, min|max, d]."""
    layers, kv_heads, tokens, head_dim = keys.shape
    blocked = keys.reshape(layers, kv_heads, tokens // block_tokens, block_tokens, head_dim)
    summaries = np.stack([blocked.min(axis=3), blocked.max(axis=3)], axis=3)
    by_block = np.ascontiguousarray(summaries.transpose(2, 0, 1, 3, 4))
    return np.array([oasiskv.crc32c(block) for block in by_block], dtype=np.uint32)


class EntryChecker:
    """Observes a run's residents. Blocks after the prefill were made here and are not checked."""

    def __init__(self, crcs: np.ndarray):
        self._crcs = crcs
        self._seen = np.zeros(crcs.shape, dtype=bool)
        self._last: dict[int, np.ndarray] = {}

    @property
    def checked(self) -> int:
        return int(np.count_nonzero(self._seen))

    def __call__(self, layer: int, view: oasiskv.ResidentView) -> None:
        last = self._last.get(layer)
        changed = view.map >= 0 if last is None else view.map != last
        self._last[layer] = view.map.copy()
        for head, page in zip(*np.nonzero(changed)):
            block = view.map[head, page]
            if block < 0 or block >= self._crcs.shape[2] or self._seen[layer, head, block]:
                continue
            if oasiskv.crc32c(view.pages[head, page]) != self._crcs[layer, head, block]:
                raise WrongBytes(
                    f"layer {layer}, KV head {head}, block {block}: the resident page does not hold "
                    "the bytes that the prefill wrote"
                )
            self._seen[layer, head, block] = True


def check_summaries(reader: oasiskv.Reader, crcs: np.ndarray) -> None:
    g = reader.geometry
    shape = (len(crcs), g.layers, g.kv_heads, 2, g.head_dim)
    summaries = np.empty(shape, dtype=g.dtype)
    reader.fetch_summaries(0, len(crcs), summaries)
    for block, crc in enumerate(crcs):
        if oasiskv.crc32c(summaries[block]) != crc:
            raise WrongBytes(f"block {block}: its summaries differ from those of the prefill's keys")
