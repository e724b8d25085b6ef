"""What test_gpu.py does not call of the working set on a GPU: ready top-K lists, queries of every type and from other
libraries' arrays, what resolve leaves out, sources of several parts. Needs a GPU, and nothing for it but the driver."""

import unittest

import numpy as np

import oasiskv
from fixture import GEOMETRY, IDENTITY, GpuCase, put
from test_device import Interface, Pinned

HEADS = 8
STEPS = 40  # tokens are decoded, two blocks and a half
PLACES = 5  # of a list: more than pages


class Pair:
    """A working set on the CPU and one on the GPU over the same requests, stepped together and compared."""

    def __init__(self, test, cpu_sources, gpu_sources, geometry=GEOMETRY, heads=HEADS, mode=oasiskv.Mode.CAPPED,
                 gpu_mode=None):
        self.test, self.driver, self.geometry = test, test.driver, geometry
        self.stream = self.driver.stream()
        self.rng = np.random.default_rng(4)
        options = dict(resident_blocks=3, fetch_ratio=0.5, max_blocks=64, max_requests=len(cpu_sources))
        self.cpu = oasiskv.WorkingSet(geometry, heads, mode=mode, **options)
        self.gpu = oasiskv.GpuWorkingSet(geometry, heads, max_new_tokens=STEPS,
                                         mode=mode if gpu_mode is None else gpu_mode, **options)
        self.slots = [self.cpu.admit(source) for source in cpu_sources]
        test.assertEqual([self.gpu.admit(source) for source in gpu_sources], self.slots)
        self.gpu.set_rows(self.slots, self.stream)
        rows = len(self.slots)
        self.queries, self.true = (self.driver.pinned((geometry.layers, rows, heads, geometry.head_dim), np.float32)
                                   for _ in range(2))
        self.keys = self.driver.pinned((geometry.layers, rows, geometry.kv_heads, geometry.head_dim), np.float16)
        self.tokens = [cpu_token_count(self.cpu, slot) for slot in self.slots]

    def run(self, predict, resolve=None, steps=STEPS):
        """predict(layer) and resolve(layer) call both."""
        for _ in range(steps):
            self.gpu.snapshot(0, self.slots[0])  # the device has read the last step's inputs
            # Halves of small whole numbers: every type holds them, and sums are exact.
            for queries in (self.queries, self.true):
                queries[...] = self.rng.integers(-8, 9, queries.shape) / 2
            self.keys[...] = self.rng.integers(-4, 5, self.keys.shape)
            for layer in range(self.geometry.layers):
                self.cpu.wait(layer, self.slots)
                self.gpu.wait(layer, self.stream)
                self.compare(layer)
                keys = self.keys[layer]
                self.cpu.append(layer, self.slots, keys, keys)
                self.gpu.append(layer, keys.ctypes.data, keys.ctypes.data, self.stream)
                if layer == 0:
                    self.tokens = [count + 1 for count in self.tokens]
                if resolve is not None:
                    resolve(layer)
                predict(layer)
                self.cpu.attention_done(layer, self.slots)
                self.gpu.attention_done(layer, self.stream)
            self.gpu.end_step(self.stream)
            self.gpu.check()
        for layer in range(self.geometry.layers):
            self.cpu.wait(layer, self.slots)
            self.compare(layer)

    def candidates(self, row: int) -> int:
        """Blocks that a list may name."""
        return self.tokens[row] // self.geometry.block_tokens

    def compare(self, layer):
        test, shape = self.test, self.geometry.entry_shape
        for slot in self.slots:
            view, shot = self.cpu.view(layer, slot), self.gpu.snapshot(layer, slot)
            np.testing.assert_array_equal(view.map, shot.map)
            test.assertEqual((view.local_block, view.local_tokens), (shot.complete, shot.local_tokens))
            held = np.flatnonzero(view.map.ravel() >= 0)
            pages, shots = (a[:, :-1].reshape(-1, *shape) for a in (view.pages, shot.pages))
            np.testing.assert_array_equal(pages[held], shots[held])
            local = slice(0, view.local_tokens)
            np.testing.assert_array_equal(view.pages[:, -1, :, local], shot.pages[:, -1, :, local])

    def compare_stats(self, *but):
        one, other = self.cpu.stats(), self.gpu.stats()
        for counter in ("steps", "predicted", "hit", "admitted", "promoted", "refused_by_cap", "skipped", "demanded",
                        "bytes_moved", "bytes_used"):
            if counter not in but:
                self.test.assertEqual(one[counter], other[counter], counter)
        self.test.assertGreater(one["admitted"], 0)
        self.test.assertGreater(one["bytes_used"], 0)
        return other

    def close(self):
        self.gpu.close()
        self.cpu.close()


def cpu_token_count(cpu, slot) -> int:
    view = cpu.view(0, slot)
    return view.local_block * cpu.geometry.block_tokens + view.local_tokens


class GpuCallsTest(GpuCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = oasiskv.Client(cls.daemon.address, "shm")
        for number in range(2):
            put(cls.client, f"calls-{number}", 7 + number)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        super().tearDownClass()

    def pair(self, **options):
        """Over two requests in shared memory."""
        readers = [self.client.attach(f"calls-{number}", IDENTITY, GEOMETRY) for number in range(2)]
        return Pair(self, [oasiskv.Source(reader) for reader in readers],
                    [oasiskv.Source(reader, host_cache=oasiskv.HostCache.NEVER) for reader in readers], **options)

    def test_ready_lists(self):
        pair = self.pair()
        shape = (2, GEOMETRY.kv_heads, PLACES)
        lists = self.driver.pinned((GEOMETRY.layers, *shape), np.int32)
        calls = [0]

        def predict(layer):
            given = lists[layer]
            for row in range(2):
                given[row] = pair.rng.integers(-1, pair.candidates(row), shape[1:])  # some twice, some padding
            pair.cpu.submit_topk(layer, pair.slots, given)
            given[given < 0] = pair.rng.choice([-1, 63, 1 << 30])  # no candidates either; only the GPU passes them over
            at = given.ctypes.data
            calls[0] += 1
            if calls[0] % 3 == 0:
                pair.gpu.submit_topk(layer, at, PLACES, pair.stream)
            elif calls[0] % 3 == 1:
                pair.gpu.submit_topk(layer, oasiskv.DeviceArray(at, shape, "i", 4), stream=pair.stream)
            else:
                pair.gpu.submit_topk(layer, Pinned(given), stream=pair.stream)

        pair.run(predict)
        pair.compare_stats()
        with self.assertRaisesRegex(ValueError, "topk.*int32"):
            pair.gpu.submit_topk(0, oasiskv.DeviceArray(lists.ctypes.data, shape, "f", 4), stream=pair.stream)
        with self.assertRaisesRegex(ValueError, "k is"):
            pair.gpu.submit_topk(0, lists.ctypes.data, stream=pair.stream)
        with self.assertRaises(oasiskv.InvalidArgument):
            pair.gpu.submit_topk(0, lists.ctypes.data, 0, pair.stream)
        pair.close()

    def test_queries_of_every_type(self):
        pair = self.pair(mode=oasiskv.Mode.EXACT)
        shape = (2, HEADS, GEOMETRY.head_dim)
        calls = [0]

        class Forms:
            """The layer's queries, in turn as every kind of array: arguments of submit and resolve."""

            def __init__(self, driver, queries):
                self.queries = queries
                self.half = driver.pinned(queries.shape, np.float16)
                self.apart = driver.pinned((GEOMETRY.layers, 2, HEADS + 1, GEOMETRY.head_dim), np.float16)
                self.apart[...] = 100  # rows with another head after the last
                self.brain = driver.pinned(queries.shape, np.uint16)  # numpy has no bfloat16

            def of(self, layer):
                queries, half, brain = self.queries[layer], self.half[layer], self.brain[layer]
                half[...] = queries
                self.apart[layer, :, :HEADS] = queries
                brain[...] = queries.view(np.uint32) >> 16
                calls[0] += 1
                return [
                    dict(queries=queries.ctypes.data),
                    dict(queries=Interface(queries.ctypes.data, shape, "<f4")),
                    dict(queries=half.ctypes.data, query_type=oasiskv.QueryType.FLOAT16),
                    dict(queries=Pinned(self.apart[layer, :, :HEADS])),
                    dict(queries=oasiskv.DeviceArray(brain.ctypes.data, shape, "bf", 2)),
                    dict(queries=brain.ctypes.data, query_type=oasiskv.QueryType.BFLOAT16),
                    dict(queries=half.ctypes.data, query_type=oasiskv.QueryType.FLOAT16),
                ][calls[0] % 7]

        predicting, true = Forms(self.driver, pair.queries), Forms(self.driver, pair.true)

        def predict(layer):
            pair.cpu.submit(layer, pair.slots, pair.queries[layer])
            pair.gpu.submit(layer, stream=pair.stream, **predicting.of(layer))

        def resolve(layer):
            pair.cpu.resolve(layer, pair.slots, pair.true[layer])
            pair.gpu.resolve(layer, stream=pair.stream, **true.of(layer))

        pair.run(predict, resolve)
        pair.compare_stats()
        with self.assertRaisesRegex(ValueError, "queries.*needed"):
            pair.gpu.submit(0, oasiskv.DeviceArray(predicting.half.ctypes.data, shape, "i", 2), pair.stream)
        with self.assertRaisesRegex(ValueError, "queries.*needed"):
            pair.gpu.submit(0, Interface(predicting.half.ctypes.data, (2, HEADS - 1, GEOMETRY.head_dim), "<f2"),
                            pair.stream)
        pair.close()

    def missing_blocks(self, policy):
        """Steps that leave out what is not resident; gives the counters of the GPU and how much that was."""
        pair = self.pair(mode=oasiskv.Mode.CAPPED, gpu_mode=oasiskv.Mode.EXACT)
        left_out = [0]

        def resolve(layer):
            found = pair.gpu.resolve(layer, pair.true[layer].ctypes.data, policy, pair.stream)
            self.driver.synchronize(pair.stream)
            blocks, pages, missing = (self.driver.read(a) for a in (found.blocks, found.pages, found.missing))
            for row, slot in enumerate(pair.slots):
                view = pair.cpu.view(layer, slot)
                lacking = 0
                for head in range(GEOMETRY.kv_heads):
                    top = [b for b in blocks[slot, head] if b >= 0]
                    self.assertEqual(len(set(top)), min(3, view.local_block))
                    self.assertTrue(all(b < view.local_block for b in top))
                    where = {b: p for p, b in enumerate(view.map[head]) if b >= 0}
                    self.assertEqual(list(pages[row, head]), [where.get(b, -1) for b in blocks[slot, head]])
                    lacking += sum(b not in where for b in top)
                self.assertEqual(missing[row], lacking)
                left_out[0] += lacking
            pair.compare(layer)  # nothing has moved

        def predict(layer):
            pair.cpu.submit(layer, pair.slots, pair.queries[layer])
            pair.gpu.submit(layer, pair.queries[layer].ctypes.data, pair.stream)

        pair.run(predict, resolve)
        stats = pair.compare_stats("skipped")
        pair.close()
        self.assertGreater(left_out[0], 0)
        return stats, left_out[0]

    def test_missing_blocks_are_dropped(self):
        stats, _ = self.missing_blocks(oasiskv.Miss.DROP)
        self.assertEqual(stats["skipped"], 0)

    def test_missing_blocks_are_reported(self):
        stats, left_out = self.missing_blocks(oasiskv.Miss.REPORT)
        self.assertEqual(stats["skipped"], left_out)

    def parts(self, fabric, mode):
        """A rank of heads 1 to 3 of 4, of which it has attached one, and the other two, by grants of their own."""
        client = oasiskv.Client(self.daemon.address, fabric)
        rank = oasiskv.Geometry(layers=GEOMETRY.layers, kv_heads=3, head_dim=GEOMETRY.head_dim,
                                element_type=GEOMETRY.element_type, first_head=1, total_kv_heads=4)

        def attach(first, count):
            return client.attach("calls-0", IDENTITY, GEOMETRY, first_head=first, head_count=count)

        pair = Pair(self, [oasiskv.Source(attach(1, 3))],
                    [oasiskv.Source(attach(1, 1), attach(2, 2), host_cache=oasiskv.HostCache.NEVER)],
                    geometry=rank, heads=6, mode=mode)

        def predict(layer):
            pair.cpu.submit(layer, pair.slots, pair.queries[layer])
            pair.gpu.submit(layer, pair.queries[layer].ctypes.data, pair.stream)

        def resolve(layer):
            pair.cpu.resolve(layer, pair.slots, pair.true[layer])
            pair.gpu.resolve(layer, pair.true[layer].ctypes.data, stream=pair.stream)

        pair.run(predict, resolve if mode == oasiskv.Mode.EXACT else None)
        pair.compare_stats()
        pair.close()
        client.close()

    def test_parts_over_shm(self):
        self.parts("shm", oasiskv.Mode.CAPPED)

    def test_parts_over_shm_exact(self):
        self.parts("shm", oasiskv.Mode.EXACT)

    def test_parts_over_the_network(self):
        self.parts("ucx", oasiskv.Mode.CAPPED)


if __name__ == "__main__":
    unittest.main()
