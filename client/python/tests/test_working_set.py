"""oasiskv.WorkingSet (cpu backend) against a real daemon, over every fabric of this machine."""

import unittest

import numpy as np

import oasiskv
from fixture import GEOMETRY, IDENTITY, FabricCase, expected_entry, put


class WorkingSetTest(FabricCase):
    def test_working_set_runs_and_agrees_with_the_bytes(self):
        keys, values = put(self.client, "working-set", 10)
        reader = self.client.attach("working-set", IDENTITY, GEOMETRY)
        source = oasiskv.Source(reader)
        rng = np.random.default_rng(11)
        with oasiskv.WorkingSet(GEOMETRY, 8, resident_blocks=2, fetch_ratio=1.0, mode=oasiskv.Mode.EXACT) as ws:
            slot = ws.admit(source)
            for _ in range(12):
                for layer in range(GEOMETRY.layers):
                    query = rng.standard_normal((1, 8, 16)).astype(np.float32)
                    ws.wait(layer, slot)
                    ws.append(layer, slot, np.ones((1, 4, 16), np.float16), np.ones((1, 4, 16), np.float16))
                    ws.resolve(layer, slot, query)
                    ws.submit(layer, slot, query)
                    view = ws.view(layer, slot)
                    for head in range(GEOMETRY.kv_heads):
                        for page, block in enumerate(view.map[head]):
                            if 0 <= block < 4:
                                np.testing.assert_array_equal(
                                    view.pages[head, page], expected_entry(keys, values, block, layer, head))
                    ws.attention_done(layer, slot)
            stats = ws.stats()
            self.assertGreater(stats["demanded"] + stats["admitted"], 0)
            self.assertEqual(stats["agreement_samples"] > 0, True)
            ws.leave(slot)
        source.close()
        reader.close()

    def test_combine_and_bound_weight_choose_the_blocks(self):
        """Block 0 spreads over +-10, block 1 is 1 everywhere, block 2 is -1 everywhere."""
        keys = np.ones((48, 4, 16), np.float16)
        keys[:16:2], keys[1:16:2], keys[32:] = 10, -10, -1
        queries = np.ones((GEOMETRY.layers, 8, 16), np.float32)
        queries[:, 1::2] = -0.25  # the second head of each group likes block 2, and has less to say
        max_, normalized = oasiskv.Combine.MAX, oasiskv.Combine.NORMALIZED_MAX
        cases = {  # (combine, bound weight): the two best blocks
            (max_, None): {0, 1},
            (max_, 1.0): {0, 1},
            (max_, 0.0): {1, 2},
            (normalized, 0.0): {1, 2},
            (max_, 0.05): {1, 0},
            (normalized, 0.05): {1, 2},
        }
        for (combine, weight), best in cases.items():
            options = {"combine": combine, **({} if weight is None else {"bound_weight": weight})}
            name = f"choose-{combine}-{weight}"
            with self.client.open(name, IDENTITY, GEOMETRY, blocks=3) as producer:
                for layer in range(GEOMETRY.layers):
                    producer.write_tokens(layer, 0, keys, keys)
                producer.seal(48, first_queries=queries, top_k=2, **options)
            with self.client.attach(name, IDENTITY, GEOMETRY) as reader:
                self.assertEqual({frozenset(top.tolist()) for top in reader.first_topk.reshape(-1, 2)}, {frozenset(best)})
                with oasiskv.Source(reader) as source, oasiskv.WorkingSet(
                        GEOMETRY, 8, resident_blocks=2, mode=oasiskv.Mode.EXACT, **options) as ws:
                    slot = ws.admit(source)
                    ws.wait(0, slot)
                    ws.append(0, slot, keys[:1], keys[:1])
                    ws.resolve(0, slot, queries[:1])
                    self.assertEqual(set(ws.view(0, slot).map.ravel().tolist()), best)
                    ws.attention_done(0, slot)
                    ws.leave(slot)

    def test_summaries_in_8_bits_choose_by_rounded_bounds(self):
        """Blocks of 1.9375 and of 2: E4M3 rounds both maxima to 2, and the lower block wins a tie."""
        keys = np.full((32, 4, 16), 2, np.float16)
        keys[:16] = 1.9375
        with self.client.open("fp8", IDENTITY, GEOMETRY, blocks=2) as producer:
            for layer in range(GEOMETRY.layers):
                producer.write_tokens(layer, 0, keys, keys)
            producer.seal(32)
        for summaries, best in (("as_keys", 1), ("fp8", 0)):
            with self.client.attach("fp8", IDENTITY, GEOMETRY) as reader, oasiskv.Source(reader) as source, \
                    oasiskv.WorkingSet(GEOMETRY, 8, resident_blocks=1, mode=oasiskv.Mode.EXACT,
                                       summaries=summaries) as ws:
                slot = ws.admit(source)
                ws.wait(0, slot)
                ws.append(0, slot, keys[:1], keys[:1])
                ws.resolve(0, slot, np.ones((1, 8, 16), np.float32))
                self.assertEqual(set(ws.view(0, slot).map.ravel().tolist()), {best})
                ws.attention_done(0, slot)
                ws.leave(slot)
        with self.assertRaisesRegex(ValueError, "summaries is 'fp4'"):
            oasiskv.WorkingSet(GEOMETRY, 8, summaries="fp4")

    def test_pages_beyond_the_ranked_blocks_keep_what_was_ranked_last(self):
        """Block b's keys are e_b: a query e_b ranks block b alone."""
        keys = np.zeros((48, 4, 16), np.float16)
        for block in range(3):
            keys[block * 16:block * 16 + 16, :, block] = 1
        with self.client.open("ranked", IDENTITY, GEOMETRY, blocks=3) as producer:
            for layer in range(GEOMETRY.layers):
                producer.write_tokens(layer, 0, keys, keys)
            producer.seal(48)
        with self.client.attach("ranked", IDENTITY, GEOMETRY) as reader, oasiskv.Source(reader) as source, \
                oasiskv.WorkingSet(GEOMETRY, 8, resident_blocks=2, ranked_blocks=1, mode=oasiskv.Mode.EXACT) as ws:
            slot = ws.admit(source)
            ws.wait(0, slot)
            ws.append(0, slot, keys[:1], keys[:1])
            for block, resident in ((0, {0}), (2, {0, 2}), (0, {0, 2}), (1, {0, 1})):
                query = np.zeros((1, 8, 16), np.float32)
                query[..., block] = 1
                ws.resolve(0, slot, query)
                self.assertLessEqual(resident, set(ws.view(0, slot).map.ravel().tolist()))
            self.assertEqual(ws.stats()["demanded"], 4 * 2)  # 4 heads, which begin with blocks 1 and 2
            ws.attention_done(0, slot)
            ws.leave(slot)
        with self.assertRaisesRegex(oasiskv.InvalidArgument, "ranked_blocks is 3"):
            oasiskv.WorkingSet(GEOMETRY, 8, resident_blocks=2, ranked_blocks=3)

    def test_a_bound_weight_outside_0_to_1_is_refused(self):
        for weight in (-0.1, 1.1, float("nan")):
            with self.assertRaisesRegex(ValueError, "bound_weight"):
                oasiskv.WorkingSet(GEOMETRY, 8, bound_weight=weight)
            with self.client.open(f"weight{weight}", IDENTITY, GEOMETRY, blocks=1) as producer:
                with self.assertRaisesRegex(ValueError, "bound_weight"):
                    producer.seal(0, bound_weight=weight)


class ShmWorkingSetTest(WorkingSetTest):
    fabric = "shm"


class UcxWorkingSetTest(WorkingSetTest):
    fabric = "ucx"


if __name__ == "__main__":
    unittest.main()
