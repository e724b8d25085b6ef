"""The working set on a GPU against the one on the CPU, over a real daemon's memory. Needs a GPU, and nothing for it but
the driver."""

import unittest

import numpy as np

import oasiskv
from fixture import GEOMETRY, IDENTITY, GpuCase, put

HEADS = 8
STEPS = 60


class GpuTest(GpuCase):
    def setUp(self):
        self.stream = self.driver.stream()
        self.queries = self.driver.pinned((GEOMETRY.layers, 1, HEADS, GEOMETRY.head_dim), np.float32)
        self.keys = self.driver.pinned((GEOMETRY.layers, 1, GEOMETRY.kv_heads, GEOMETRY.head_dim), np.float16)

    def steps(self, fabric, mode, summaries="as_keys"):
        name = f"gpu-{fabric.name}-{mode.name}-{summaries}"
        grain = 16 if summaries == "fp8" else 1  # of keys, so that rounding them shows
        client = oasiskv.Client(self.daemon.address, fabric)
        put(client, name, 5)
        reader = client.attach(name, IDENTITY, GEOMETRY)
        options = dict(resident_blocks=3, fetch_ratio=0.5, mode=mode, max_blocks=64, summaries=summaries)
        rng = np.random.default_rng(3)
        with oasiskv.WorkingSet(GEOMETRY, HEADS, **options) as cpu, oasiskv.GpuWorkingSet(
                GEOMETRY, HEADS, max_new_tokens=STEPS, **options) as gpu:
            slot = cpu.admit(oasiskv.Source(reader))
            self.assertEqual(gpu.admit(oasiskv.Source(reader, host_cache=oasiskv.HostCache.NEVER)), slot)
            gpu.set_rows([slot], self.stream)
            for _ in range(STEPS):
                # Small whole numbers: sums are exact in any order.
                self.queries[...] = rng.integers(-4, 5, self.queries.shape)
                self.keys[...] = rng.integers(-4 * grain, 4 * grain + 1, self.keys.shape) / grain
                for layer in range(GEOMETRY.layers):
                    queries, keys = self.queries[layer], self.keys[layer]
                    cpu.wait(layer, slot)
                    gpu.wait(layer, self.stream)
                    self.compare(cpu, gpu, layer, slot)
                    cpu.append(layer, slot, keys, keys)
                    gpu.append(layer, keys.ctypes.data, keys.ctypes.data, self.stream)
                    if mode == oasiskv.Mode.EXACT:
                        cpu.resolve(layer, slot, queries)
                        gpu.resolve(layer, queries.ctypes.data, stream=self.stream)
                    cpu.submit(layer, slot, queries)
                    gpu.submit(layer, queries.ctypes.data, self.stream)
                    cpu.attention_done(layer, slot)
                    gpu.attention_done(layer, self.stream)
                gpu.end_step(self.stream)
                gpu.snapshot(0, slot)  # waits for predict, too, which reads the queries beside the stream
                gpu.check()
            for layer in range(GEOMETRY.layers):
                cpu.wait(layer, slot)
                self.compare(cpu, gpu, layer, slot)
            one, other = cpu.stats(), gpu.stats(slot)
            for counter in ("steps", "predicted", "hit", "admitted", "promoted", "refused_by_cap", "demanded",
                            "bytes_moved", "bytes_used"):
                self.assertEqual(one[counter], other[counter], counter)
            self.assertGreater(one["admitted"] + one["demanded"], 0)
            gpu.leave(slot)
            cpu.leave(slot)
        client.close()

    def compare(self, cpu, gpu, layer, slot):
        view, shot = cpu.view(layer, slot), gpu.snapshot(layer, slot)
        np.testing.assert_array_equal(view.map, shot.map)
        self.assertEqual((view.local_block, view.local_tokens), (shot.complete, shot.local_tokens))
        held = np.flatnonzero(view.map.ravel() >= 0)
        pages, shots = (a[:, :-1].reshape(-1, *GEOMETRY.entry_shape) for a in (view.pages, shot.pages))
        np.testing.assert_array_equal(pages[held], shots[held])
        local = slice(0, view.local_tokens)
        np.testing.assert_array_equal(view.pages[:, -1, :, local], shot.pages[:, -1, :, local])

    def test_over_shm(self):
        self.steps("shm", oasiskv.Mode.CAPPED)

    def test_over_shm_exact(self):
        self.steps("shm", oasiskv.Mode.EXACT)

    def test_over_shm_with_summaries_in_8_bits(self):
        self.steps("shm", oasiskv.Mode.CAPPED, "fp8")

    def test_over_the_network(self):
        self.steps("ucx", oasiskv.Mode.CAPPED)

    def test_over_the_network_exact(self):
        self.steps("ucx", oasiskv.Mode.EXACT)

    def test_a_released_sequence_is_stale(self):
        client = oasiskv.Client(self.daemon.address, "shm")
        put(client, "gpu-stale", 6)
        reader = client.attach("gpu-stale", IDENTITY, GEOMETRY)
        with oasiskv.GpuWorkingSet(GEOMETRY, HEADS, resident_blocks=2, fetch_ratio=1.0) as gpu:
            slot = gpu.admit(oasiskv.Source(reader))
            gpu.set_rows([slot], self.stream)
            self.assertEqual(client.abort("gpu-stale", IDENTITY, "test"), 1)
            rng = np.random.default_rng(1)
            with self.assertRaises(oasiskv.Stale):
                for _ in range(20):
                    self.queries[...] = rng.integers(-4, 5, self.queries.shape)
                    gpu.wait(0, self.stream)
                    gpu.submit(0, self.queries[0].ctypes.data, self.stream)
                    gpu.attention_done(0, self.stream)
                    gpu.snapshot(0, slot)  # waits for the device
                    gpu.check()
            self.assertTrue((gpu.snapshot(0, slot).map == -1).any())
        client.close()


if __name__ == "__main__":
    unittest.main()
