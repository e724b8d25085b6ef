"""Geometry and identity of a sequence, as in oasiskv/geometry.h."""

import ctypes
import enum
from dataclasses import dataclass

import numpy as np

from oasiskv.native import CGeometry, CIdentity, CLayout, get, text


class ElementType(enum.IntEnum):
    FLOAT16 = 1
    BFLOAT16 = 2  # numpy has no such type: arrays of it are uint16
    FLOAT32 = 3

    @property
    def dtype(self) -> np.dtype:
        return np.dtype({1: np.float16, 2: np.uint16, 3: np.float32}[int(self)])


class Packing(enum.IntEnum):
    KEY_THEN_VALUE = 1
    LATENT = 2  # MLA


class Combine(enum.IntEnum):
    """How the scores of the query heads of one GQA group are combined into one."""

    MAX = 0
    MEAN = 1
    SUM = 2
    NORMALIZED_MAX = 3  # the maximum, after subtracting each head's own best score from its scores


def bound_weight_to_c(weight: float) -> float:
    """How much of a summary's range counts in a score: 1 is the upper bound, 0 the middle (oasiskv/selection.h has the
    formula). In the C ABI 0 means the default, and a negative number means 0."""
    if not 0 <= weight <= 1:
        raise ValueError(f"bound_weight is {weight}; it must be between 0 and 1 (1: the bound)")
    return weight if weight > 0 else -1.0


@dataclass(frozen=True)
class Geometry:
    """Shape of one shard's KV. `first_head` and `total_kv_heads` say which heads of the model it has (default: all)."""

    layers: int
    kv_heads: int
    head_dim: int
    element_type: ElementType = ElementType.BFLOAT16
    block_tokens: int = 16
    packing: Packing = Packing.KEY_THEN_VALUE
    first_head: int = 0
    total_kv_heads: int = 0

    def to_c(self) -> CGeometry:
        return CGeometry(
            layers=self.layers, kv_heads=self.kv_heads, head_dim=self.head_dim, block_tokens=self.block_tokens,
            element_type=self.element_type, packing=self.packing, first_head=self.first_head,
            total_kv_heads=self.total_kv_heads,
        )

    def _layout(self) -> CLayout:
        return get(CLayout, "geometry_layout", ctypes.byref(self.to_c()))

    @property
    def dtype(self) -> np.dtype:
        return ElementType(self.element_type).dtype

    @property
    def entry_bytes(self) -> int:
        """Bytes of one block of one layer and head: all keys, then all values."""
        return self._layout().entry_bytes

    @property
    def entry_shape(self) -> tuple:
        """(2, block_tokens, head_dim): K and V; (1, block_tokens, head_dim) for latent packing."""
        halves = 1 if self.packing == Packing.LATENT else 2
        return (halves, self.block_tokens, self.head_dim)

    @property
    def summary_bytes(self) -> int:
        """Bytes of the minimum and maximum key of one entry."""
        return self._layout().summary_bytes

    @property
    def frame_bytes(self) -> int:
        """Bytes of one block of all layers and heads, with summaries."""
        return self._layout().frame_bytes


@dataclass(frozen=True)
class Identity:
    """What the KV belongs to; sequences of different identities never mix."""

    model: str
    revision: str = ""
    tenant: str = ""

    def to_c(self) -> CIdentity:
        return CIdentity(model=text(self.model, "model"), revision=text(self.revision, "revision"),
                         tenant=text(self.tenant, "tenant"))
