"""What the tests of the package share: a small geometry, sequences of it, a daemon and a client for each fabric."""

import unittest

import numpy as np

import oasiskv
from daemon import Daemon
from oasiskv.driver import Driver, DriverMissing

GEOMETRY = oasiskv.Geometry(layers=3, kv_heads=4, head_dim=16, element_type=oasiskv.ElementType.FLOAT16)
IDENTITY = oasiskv.Identity("test/model", "rev-1")
TOKENS = 70  # four whole blocks and one of six tokens


def some_kv(seed: int, geometry=GEOMETRY, tokens=TOKENS):
    rng = np.random.default_rng(seed)
    shape = (geometry.layers, tokens, geometry.kv_heads, geometry.head_dim)
    return rng.standard_normal(shape).astype(geometry.dtype), rng.standard_normal(shape).astype(geometry.dtype)


def put(client, name, seed, **seal):
    keys, values = some_kv(seed)
    producer = client.open(name, IDENTITY, GEOMETRY, blocks=5)
    for layer in range(GEOMETRY.layers):
        producer.write_tokens(layer, 0, keys[layer], values[layer])
    producer.seal(TOKENS, **seal)
    producer.close()
    return keys, values


def expected_entry(keys, values, block, layer, head):
    entry = np.zeros(GEOMETRY.entry_shape, dtype=GEOMETRY.dtype)
    rows = slice(block * 16, min(block * 16 + 16, TOKENS))
    count = rows.stop - rows.start
    entry[0, :count] = keys[layer, rows, head]
    entry[1, :count] = values[layer, rows, head]
    return entry


class FabricCase(unittest.TestCase):
    """Base of cases that run over each fabric: a class that sets `fabric` runs."""

    fabric = None

    @classmethod
    def setUpClass(cls):
        if cls.fabric is None:
            raise unittest.SkipTest("base of the per-fabric cases")
        cls.daemon = Daemon()
        cls.client = oasiskv.Client(cls.daemon.address, cls.fabric)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.daemon.stop()


class GpuCase(unittest.TestCase):
    """Base of cases that need a GPU: a driver and a daemon for each class, or a skip that names the need."""

    @classmethod
    def setUpClass(cls):
        try:
            cls.driver = Driver()
            oasiskv.GpuWorkingSet(GEOMETRY, GEOMETRY.kv_heads).close()
        except (DriverMissing, oasiskv.Unsupported) as error:
            raise unittest.SkipTest(f"needs a GPU and a library built with CUDA: {error}") from None
        cls.daemon = Daemon()

    @classmethod
    def tearDownClass(cls):
        cls.daemon.stop()
