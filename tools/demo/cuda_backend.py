"""The demo's decode steps on a working set in GPU memory.

The model itself runs in numpy, so queries and new tokens go to the GPU through pinned memory, and the
resident pages come back as host copies: correct, but slow. It shows that the cuda backend chooses the same
blocks and holds the same bytes as the cpu backend; tools/bench measures its cost in an engine on the GPU.
"""

import sys

import numpy as np
import oasiskv
from oasiskv.driver import Driver, DriverMissing


class CudaWorkingSet:
    """oasiskv.WorkingSet's calls for one request at a time, over oasiskv.GpuWorkingSet.

    Thread contract: one thread.
    """

    def __init__(self, geometry: oasiskv.Geometry, query_heads: int, **options):
        """options: those of oasiskv.GpuWorkingSet."""
        self._layers = geometry.layers
        self._driver = Driver()
        self._stream = self._driver.stream()
        self._gpu = oasiskv.GpuWorkingSet(geometry, query_heads, **options)
        # One set of inputs per layer: the GPU reads them until the layer's next wait is done.
        heads = (geometry.layers, 1, query_heads, geometry.head_dim)
        token = (geometry.layers, 1, geometry.kv_heads, geometry.head_dim)
        self._true = self._driver.pinned(heads, np.float32)
        self._predicting = self._driver.pinned(heads, np.float32)
        self._keys = self._driver.pinned(token, geometry.dtype)
        self._values = self._driver.pinned(token, geometry.dtype)

    def admit(self, source: oasiskv.Source) -> int:
        slot = self._gpu.admit(source)
        self._gpu.set_rows([slot], self._stream)
        return slot

    def leave(self, slot: int) -> None:
        self._gpu.leave(slot)

    def close(self) -> None:
        self._gpu.close()

    def wait(self, layer: int, slot: int) -> None:
        self._gpu.wait(layer, self._stream)

    def append(self, layer: int, slot: int, keys: np.ndarray, values: np.ndarray) -> None:
        self._keys[layer], self._values[layer] = keys, values
        self._gpu.append(layer, _at(self._keys[layer]), _at(self._values[layer]), self._stream)

    def resolve(self, layer: int, slot: int, queries: np.ndarray) -> None:
        self._true[layer] = queries
        self._gpu.resolve(layer, _at(self._true[layer]), stream=self._stream)

    def sample_agreement(self, layer: int, slot: int, queries: np.ndarray) -> None:
        self._true[layer] = queries
        self._gpu.sample_agreement(layer, _at(self._true[layer]), self._stream)

    def submit(self, layer: int, slot: int, queries: np.ndarray) -> None:
        self._predicting[layer] = queries
        self._gpu.submit(layer, _at(self._predicting[layer]), self._stream)

    def view(self, layer: int, slot: int) -> oasiskv.ResidentView:
        shot = self._gpu.snapshot(layer, slot)  # waits for all that was enqueued
        self._gpu.check()
        return oasiskv.ResidentView(shot.pages, shot.map, shot.local_tokens, shot.complete)

    def attention_done(self, layer: int, slot: int) -> None:
        self._gpu.attention_done(layer, self._stream)
        if layer == self._layers - 1:
            self._gpu.end_step(self._stream)

    def stats(self) -> dict:
        self._driver.synchronize(self._stream)  # so that all work before it has been counted
        return self._gpu.stats()


def _at(array: np.ndarray) -> int:
    return array.ctypes.data


def missing() -> str | None:
    """Why this machine cannot run the cuda backend, or None."""
    try:
        CudaWorkingSet(oasiskv.Geometry(layers=1, kv_heads=1, head_dim=64), 1, resident_blocks=1).close()
    except (DriverMissing, oasiskv.OasisError) as error:
        return str(error)
    return None


if __name__ == "__main__":  # a process of its own, since its CUDA context ends with it
    sys.exit(missing())
