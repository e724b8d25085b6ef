"""The Llama forward pass in numpy float32: a chunked prefill and a decode step of a few rows.

Attention is not in here: it is a callback, one call per layer, so that full attention and the
sparse path run the same model code (see attention.py).
"""

from typing import Callable

import numpy as np

from attention import Attend, FullAttention
from gguf_model import Model


def rms_norm(x: np.ndarray, weight: np.ndarray, epsilon: float) -> np.ndarray:
    mean_square = np.mean(x * x, axis=-1, keepdims=True)
    return x / np.sqrt(mean_square + np.float32(epsilon)) * weight


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def _project(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """x @ weight.T. A few rows go one by one: a matrix-vector product reads the weights once and
    in place, where a skinny matrix product first repacks them, and a row's bits then do not depend
    on the rows beside it."""
    if x.shape[0] > 4:
        return x @ weight.T
    out = np.empty((x.shape[0], weight.shape[0]), dtype=np.float32)
    for row in range(x.shape[0]):
        np.matmul(weight, x[row], out=out[row])
    return out


class Llama:
    """Thread contract: immutable after construction; calls may run in parallel."""

    def __init__(self, model: Model):
        self._model = model
        self.config = model.config
        half = self.config.head_dim // 2
        frequencies = self.config.rope_base ** (-np.arange(half, dtype=np.float64) / half)
        angles = np.arange(self.config.context, dtype=np.float64)[:, None] * frequencies
        self._cos = np.cos(angles).astype(np.float32)
        self._sin = np.sin(angles).astype(np.float32)

    def new_cache(self, capacity: int) -> FullAttention:
        c = self.config
        return FullAttention(c.layers, c.kv_heads, c.head_dim, capacity)

    def prefill(
        self,
        tokens: list[int],
        cache: FullAttention,
        chunk: int = 512,
        progress: Callable[[int], None] | None = None,
    ) -> np.ndarray:
        """Appends the tokens' KV to `cache` and returns the logits after the last one."""
        start = cache.length(0)
        hidden = None
        for first in range(0, len(tokens), chunk):
            part = tokens[first : first + chunk]
            positions = np.arange(start + first, start + first + len(part))
            hidden = self._layers(part, positions, cache.prefill)
            if progress is not None:
                progress(first + len(part))
        return self.logits(hidden[-1])

    def decode(self, tokens: list[int], position: int, attend: Attend) -> np.ndarray:
        """One step: tokens[0] stands at `position`, a draft (tokens[1], if any) right after it.
        Returns the logits after tokens[0]."""
        positions = np.arange(position, position + len(tokens))
        return self.logits(self._layers(tokens, positions, attend)[0])

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        normed = rms_norm(hidden, self._model.output_norm, self.config.norm_epsilon)
        return self._model.embedding @ normed

    def _layers(self, tokens, positions: np.ndarray, attend) -> np.ndarray:
        if positions[-1] >= self.config.context:
            raise ValueError(
                f"position {positions[-1]} is past the model's context of {self.config.context}"
            )
        c = self.config
        rows = len(tokens)
        cos, sin = self._cos[positions][:, None], self._sin[positions][:, None]
        query_rows, kv_rows = c.query_heads * c.head_dim, c.kv_heads * c.head_dim
        x = self._model.embedding[np.asarray(tokens)]
        for index, layer in enumerate(self._model.layers):
            normed = rms_norm(x, layer.attention_norm, c.norm_epsilon)
            qkv = _project(normed, layer.qkv)
            # Queries and keys rotate alike, so they go through RoPE together.
            rotated = self._rotate(
                qkv[:, : query_rows + kv_rows].reshape(rows, -1, c.head_dim), cos, sin
            )
            q = rotated[:, : c.query_heads]
            k = rotated[:, c.query_heads :].astype(np.float16)
            v = qkv[:, query_rows + kv_rows :].reshape(rows, -1, c.head_dim).astype(np.float16)
            mixed = attend(index, q, k, v)
            x = x + _project(mixed.reshape(rows, -1), layer.output)
            normed = rms_norm(x, layer.ffn_norm, c.norm_epsilon)
            gate, up = np.split(_project(normed, layer.gate_up), 2, axis=1)
            silu = gate * (np.float32(0.5) + np.float32(0.5) * np.tanh(np.float32(0.5) * gate))
            x = x + _project(silu * up, layer.down)
        return x

    @staticmethod
    def _rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
        first, second = np.split(x, 2, axis=-1)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
