"""The forward pass on a small random model, against a direct formulation of the same mathematics."""

import unittest

import numpy as np

from attention import FullAttention, attend_prefill, attend_rows
from gguf_model import LayerWeights, Model, ModelConfig, split_rotary_halves
from llama import Llama, log_softmax

CONFIG = ModelConfig(layers=2, query_heads=6, kv_heads=2, head_dim=8, hidden=48, context=64,
                     rope_base=10000.0, norm_epsilon=1e-5, vocabulary=32)


def random_model(seed: int = 1) -> Model:
    generator = np.random.default_rng(seed)

    def weight(*shape):
        return (generator.standard_normal(shape) * 0.3).astype(np.float32)

    c, ffn = CONFIG, 40
    layers = [
        LayerWeights(weight(c.hidden), weight((c.query_heads + 2 * c.kv_heads) * c.head_dim, c.hidden),
                     weight(c.hidden, c.hidden), weight(c.hidden), weight(2 * ffn, c.hidden),
                     weight(c.hidden, ffn))
        for _ in range(c.layers)
    ]
    return Model(c, weight(c.vocabulary, c.hidden), weight(c.hidden), layers, None)


def plain_attention(q, keys, values):
    """One row of queries [query_heads, d] over all of keys, values [kv_heads, tokens, d]."""
    group = q.shape[0] // keys.shape[0]
    out = np.empty(q.shape, dtype=np.float64)
    for head in range(q.shape[0]):
        scores = keys[head // group].astype(np.float64) @ q[head] / np.sqrt(q.shape[1])
        weights = np.exp(scores - scores.max())
        out[head] = weights / weights.sum() @ values[head // group]
    return out


class Attention(unittest.TestCase):
    def setUp(self):
        generator = np.random.default_rng(2)
        self.keys = generator.standard_normal((2, 20, 8)).astype(np.float16).astype(np.float32)
        self.values = generator.standard_normal((2, 20, 8)).astype(np.float16).astype(np.float32)
        self.q = generator.standard_normal((20, 6, 8)).astype(np.float32)

    def test_prefill_is_causal_in_any_block_size(self):
        for rows_at_once in (1, 7, 64):
            out = attend_prefill(self.q[5:], self.keys, self.values, 5, rows_at_once)
            for row in range(15):
                end = 5 + row + 1
                expected = plain_attention(self.q[5 + row], self.keys[:, :end], self.values[:, :end])
                np.testing.assert_allclose(out[row], expected, atol=1e-5)

    def test_a_draft_row_attends_its_own_pair_and_leaves_row_0_alone(self):
        new = self.keys[:, -2:].swapaxes(0, 1).astype(np.float16)
        new_v = self.values[:, -2:].swapaxes(0, 1).astype(np.float16)
        two = attend_rows(self.q[:2], self.keys[:, :-1], self.values[:, :-1], new, new_v)
        one = attend_rows(self.q[:1], self.keys[:, :-1], self.values[:, :-1], new[:1], new_v[:1])
        np.testing.assert_array_equal(two[0], one[0])
        np.testing.assert_allclose(two[1], plain_attention(self.q[1], self.keys, self.values), atol=1e-5)


class Forward(unittest.TestCase):
    def test_chunks_and_single_steps_agree(self):
        model = Llama(random_model())
        tokens = [int(t) for t in np.random.default_rng(3).integers(0, 32, 30)]
        whole = model.prefill(tokens, model.new_cache(30), chunk=30)
        chunked = model.prefill(tokens, model.new_cache(30), chunk=7)
        cache = model.new_cache(30)
        for position, token in enumerate(tokens):
            stepped = model.decode([token], position, cache)
        np.testing.assert_allclose(chunked, whole, atol=2e-3)
        np.testing.assert_allclose(stepped, whole, atol=2e-3)

    def test_a_draft_changes_no_bit_of_the_real_row_and_stays_nowhere(self):
        model = Llama(random_model())
        cache = model.new_cache(12)
        model.prefill([1, 2, 3, 4, 5], cache)
        alone = model.decode([6], 5, cache)
        cache.truncate(5)
        beside = model.decode([6, 7], 5, cache)
        np.testing.assert_array_equal(alone, beside)
        self.assertEqual(cache.length(0), 6)

    def test_kv_is_rounded_to_float16_before_use(self):
        cache = FullAttention(1, 2, 8, 4)
        generator = np.random.default_rng(4)
        k = generator.standard_normal((1, 2, 8)).astype(np.float16)
        q = generator.standard_normal((1, 6, 8)).astype(np.float32)
        out = cache(0, q, k, k)
        np.testing.assert_array_equal(out.reshape(2, 3, 8), np.repeat(k[0, :, None], 3, 1).astype(np.float32))

    def test_past_the_context_is_refused(self):
        model = Llama(random_model())
        with self.assertRaisesRegex(ValueError, "position 64"):
            model.decode([1], 64, model.new_cache(1))

    def test_log_softmax_is_a_distribution(self):
        self.assertAlmostEqual(np.exp(log_softmax(np.array([1000.0, 999.0, -5.0]))).sum(), 1.0)


class RotaryOrder(unittest.TestCase):
    def test_neighbouring_rows_become_halves(self):
        rows = np.arange(8, dtype=np.float32)[:, None]  # two heads of four
        self.assertEqual(split_rotary_halves(rows, 2)[:, 0].tolist(), [0, 2, 1, 3, 4, 6, 5, 7])


if __name__ == "__main__":
    unittest.main()
