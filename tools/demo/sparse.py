"""Sparse attention of the demo: the callback that runs a decode step over a working set's residents.

Per layer and step the order of calls is fixed (oasiskv/working_set.h has the contracts):

    wait            what the step before submitted for this layer has arrived in the pages
    append          the token's own KV enters the local block
    resolve         exact mode: the true query's top-K becomes resident; capped mode only samples
                    how well the prediction agreed with it
    submit          the query that predicts the next step; its transfer starts after attention_done
    (attention over the pages and the local block)
    attention_done  from here on the transfer may overwrite the pages it replaces
"""

from dataclasses import dataclass

import numpy as np
import oasiskv

from attention import attend_rows
from gguf_model import ModelConfig

BLOCK_TOKENS = 16


@dataclass(frozen=True)
class Score:
    """How blocks are scored for a query (oasiskv/selection.h has the formulas)."""

    combine: oasiskv.Combine
    bound_weight: float


# README.md says with which text "normalized" was chosen; "published" is the paper's, for reference.
SCORES = {
    "normalized": Score(oasiskv.Combine.NORMALIZED_MAX, 0.5),
    "published": Score(oasiskv.Combine.MAX, 1.0),
}


@dataclass(frozen=True)
class SparseConfig:
    mode: str  # "capped" or "exact"
    ratio: float  # at most ratio * budget_blocks may change per head, layer and step (capped)
    predictor: str
    budget_blocks: int  # K, resident blocks per layer and KV head
    score: str = "normalized"  # a name of SCORES


def geometry_of(config: ModelConfig) -> oasiskv.Geometry:
    return oasiskv.Geometry(
        layers=config.layers,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        element_type=oasiskv.ElementType.FLOAT16,
        block_tokens=BLOCK_TOKENS,
    )


@dataclass(frozen=True)
class Part:
    """KV heads that hold equally many tokens, and those in ascending position."""

    heads: np.ndarray
    keys: np.ndarray  # float32 [heads, tokens, head_dim]
    values: np.ndarray


def gather(view: oasiskv.ResidentView) -> list[Part]:
    """The residents and the local block. Usually one part: heads hold different numbers of blocks only
    if the working set gave up some that were late."""
    _, _, _, block_tokens, head_dim = view.pages.shape
    order = np.argsort(view.map, axis=1, kind="stable")  # empty pages, -1, come first
    empty = np.count_nonzero(view.map < 0, axis=1)
    parts = []
    for free in np.unique(empty):
        heads = np.flatnonzero(empty == free)
        entries = view.pages[heads[:, None], order[heads, free:]]
        resident = entries.shape[1] * block_tokens
        both = []
        for half in (0, 1):
            out = np.empty((len(heads), resident + view.local_tokens, head_dim), dtype=np.float32)
            out[:, :resident] = entries[:, :, half].reshape(len(heads), resident, head_dim)
            out[:, resident:] = view.pages[heads, -1, half, : view.local_tokens]
            both.append(out)
        parts.append(Part(heads, *both))
    return parts


def attend_parts(q: np.ndarray, parts: list[Part], k_new: np.ndarray, v_new: np.ndarray) -> np.ndarray:
    """attend_rows over every part's heads; shapes as there."""
    rows, query_heads, head_dim = q.shape
    kv_heads = k_new.shape[1]
    grouped = q.reshape(rows, kv_heads, query_heads // kv_heads, head_dim)
    out = np.empty_like(grouped)
    for part in parts:
        queries = grouped[:, part.heads].reshape(rows, -1, head_dim)
        mixed = attend_rows(queries, part.keys, part.values, k_new[:, part.heads], v_new[:, part.heads])
        out[:, part.heads] = mixed.reshape(rows, len(part.heads), -1, head_dim)
    return out.reshape(q.shape)


class SparseAttend:
    """The attention callback of one request in a working set.

    Thread contract: one thread. `observe(layer, view)` sees the residents of every layer and step
    before they are attended. The working set must outlive this object.
    """

    def __init__(self, working_set: oasiskv.WorkingSet, slot: int, exact: bool, observe=None):
        self._set = working_set
        self._slot = slot
        self._exact = exact
        self._observe = observe

    def __call__(self, layer, q, k_new, v_new) -> np.ndarray:
        working_set, slot = self._set, self._slot
        working_set.wait(layer, slot)
        working_set.append(layer, slot, k_new[:1], v_new[:1])
        if self._exact:
            working_set.resolve(layer, slot, q[:1])
        else:
            working_set.sample_agreement(layer, slot, q[:1])
        working_set.submit(layer, slot, q[-1:])  # the draft row's query, or the only row's
        view = working_set.view(layer, slot)
        if self._observe is not None:
            self._observe(layer, view)
        out = attend_parts(q, gather(view), k_new, v_new)
        working_set.attention_done(layer, slot)
        return out
