"""Sparse attention of the demo: the callback that runs a decode step over a working set's residents.

Per layer and step the order of calls is fixed (oasiskv/working_set.h has the contracts):

    wait            what was submitted for this layer in the step before has arrived in the pages
    append          the token's own KV enters the local block
    resolve         exact mode: the true query's top-K becomes resident; capped mode only samples
                    how well the prediction agreed with it
    submit          the query that predicts the next step; its transfer starts behind attention_done
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
class SparseConfig:
    mode: str  # "capped" or "exact"
    ratio: float  # at most ratio * budget_blocks may change per head, layer and step (capped)
    predictor: str
    budget_blocks: int  # K, resident blocks per layer and KV head

    @property
    def name(self) -> str:
        return f"{self.mode} {self.ratio:g} {self.predictor} K={self.budget_blocks}"


def geometry_of(config: ModelConfig) -> oasiskv.Geometry:
    return oasiskv.Geometry(
        layers=config.layers,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        element_type=oasiskv.ElementType.FLOAT16,
        block_tokens=BLOCK_TOKENS,
    )


def gather(view: oasiskv.ResidentView) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values of the residents and the local block in ascending token position, float32
    [kv_heads, tokens, head_dim]."""
    kv_heads, pages, _, block_tokens, head_dim = view.pages.shape
    order = np.argsort(view.map, axis=1, kind="stable")
    free = np.count_nonzero(view.map < 0, axis=1)
    if np.any(free != free[0]):
        raise RuntimeError(f"KV heads hold different numbers of blocks: {pages - 1 - free}")
    entries = view.pages[np.arange(kv_heads)[:, None], order[:, free[0] :]]
    resident = entries.shape[1] * block_tokens
    both = []
    for half in (0, 1):
        out = np.empty((kv_heads, resident + view.local_tokens, head_dim), dtype=np.float32)
        out[:, :resident] = entries[:, :, half].reshape(kv_heads, resident, head_dim)
        out[:, resident:] = view.pages[:, -1, half, : view.local_tokens]
        both.append(out)
    return both[0], both[1]


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
        keys, values = gather(view)
        out = attend_rows(q, keys, values, k_new, v_new)
        working_set.attention_done(layer, slot)
        return out
