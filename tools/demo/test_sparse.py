"""Gathering residents and attending to them, against full attention over the same tokens."""

import unittest

import numpy as np
import oasiskv

from attention import attend_rows
from sparse import SCORES, attend_parts, gather

KV_HEADS, GROUP, HEAD_DIM, BLOCK, BLOCKS, LOCAL = 3, 2, 8, 4, 6, 3


class Gather(unittest.TestCase):
    def setUp(self):
        generator = np.random.default_rng(1)
        shape = (KV_HEADS, BLOCKS * BLOCK + LOCAL, HEAD_DIM)
        self.keys = generator.standard_normal(shape).astype(np.float16)
        self.values = generator.standard_normal(shape).astype(np.float16)
        self.q = generator.standard_normal((2, KV_HEADS * GROUP, HEAD_DIM)).astype(np.float32)
        # Row 0's own pair is the last token; row 1 is a draft with a pair of its own.
        draft = generator.standard_normal((2, KV_HEADS, HEAD_DIM)).astype(np.float16)
        self.k_new = np.stack([self.keys[:, -1], draft[0]])
        self.v_new = np.stack([self.values[:, -1], draft[1]])

    def view(self, held: list[list[int]], pages: int = BLOCKS) -> oasiskv.ResidentView:
        """held: the blocks of each head in page order, -1 for an empty page (its bytes are NaN)."""
        content = np.full((KV_HEADS, pages + 1, 2, BLOCK, HEAD_DIM), np.nan, dtype=np.float16)
        for head, blocks in enumerate(held):
            for page, block in enumerate(blocks):
                if block >= 0:
                    tokens = slice(block * BLOCK, (block + 1) * BLOCK)
                    content[head, page] = self.keys[head, tokens], self.values[head, tokens]
            content[head, pages, :, :LOCAL] = self.keys[head, -LOCAL:], self.values[head, -LOCAL:]
        return oasiskv.ResidentView(content, np.array(held, dtype=np.int32), LOCAL, BLOCKS)

    def expected(self, head: int, blocks: list[int]) -> np.ndarray:
        """Attention of one KV head's group over the blocks and the local block."""
        at = [b * BLOCK + t for b in sorted(blocks) for t in range(BLOCK)]
        at += range(BLOCKS * BLOCK, BLOCKS * BLOCK + LOCAL)
        one = slice(head, head + 1)
        return attend_rows(
            self.q[:, head * GROUP : (head + 1) * GROUP],
            self.keys[one, at].astype(np.float32), self.values[one, at].astype(np.float32),
            self.k_new[:, one], self.v_new[:, one],
        )

    def test_every_block_resident_in_any_page_gives_full_attentions_bits(self):
        parts = gather(self.view([[3, 1, 0, 5, 4, 2], [0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0]]))
        self.assertEqual(len(parts), 1)
        np.testing.assert_array_equal(parts[0].keys, self.keys.astype(np.float32))
        full = attend_rows(
            self.q, self.keys.astype(np.float32), self.values.astype(np.float32), self.k_new, self.v_new
        )
        np.testing.assert_array_equal(attend_parts(self.q, parts, self.k_new, self.v_new), full)

    def test_heads_may_hold_different_numbers_of_blocks(self):
        held = [[3, -1, 0, -1], [-1, -1, -1, -1], [5, 1, -1, -1]]
        out = attend_parts(self.q, gather(self.view(held, pages=4)), self.k_new, self.v_new)
        for head, blocks in enumerate(held):
            expected = self.expected(head, [b for b in blocks if b >= 0])
            np.testing.assert_allclose(out[:, head * GROUP : (head + 1) * GROUP], expected, atol=1e-6)


class Scores(unittest.TestCase):
    def test_the_published_score_is_the_librarys_default(self):
        self.assertEqual(SCORES["published"].combine, oasiskv.Combine.MAX)
        self.assertEqual(SCORES["published"].bound_weight, 1.0)


if __name__ == "__main__":
    unittest.main()
