"""The Python package against a real daemon, over every fabric of this machine."""

import multiprocessing
import signal
import threading
import time
import unittest

import numpy as np

import oasiskv
from daemon import Daemon
from fixture import GEOMETRY, IDENTITY, TOKENS, FabricCase, expected_entry, put, some_kv

class ClientTest(FabricCase):

    def test_registered_buffers_are_fetched_into(self):
        keys, values = put(self.client, "registered", 3)
        reader = self.client.attach("registered", IDENTITY, GEOMETRY)
        into = reader.entries_array(2)
        with self.client.register_buffer(into) as buffer:
            self.assertFalse(buffer.direct)  # this fabric makes no copies of its own
            reader.fetch([0, 4], 1, 2, into=into)
        np.testing.assert_array_equal(into[1], expected_entry(keys, values, 4, 1, 2))
        with self.assertRaisesRegex(ValueError, "closed"):
            buffer.direct
        self.client.register_buffer(into.ctypes.data, into.nbytes).close()
        with self.assertRaises(oasiskv.InvalidArgument):
            self.client.register_buffer(0, 64)
        with self.assertRaisesRegex(ValueError, "read-only"):
            self.client.register_buffer(bytes(64))
        self.assertEqual(self.client.stats()["bytes_direct"], 0)
        reader.close()

    def test_put_and_fetch_gives_the_same_bytes(self):
        queries = np.random.default_rng(5).standard_normal((GEOMETRY.layers, 8, GEOMETRY.head_dim)).astype(np.float32)
        keys, values = put(self.client, "round-trip", 1, first_queries=queries, top_k=3, blob=b"draft")
        with self.client.attach("round-trip", IDENTITY, GEOMETRY) as reader:
            self.assertTrue(reader.sealed)
            self.assertEqual((reader.token_count, reader.blocks, reader.blob), (TOKENS, 5, b"draft"))
            self.assertEqual(reader.first_topk.shape, (3, 4, 3))
            got = reader.fetch([4, 0, 2], [0, 1, 2], [3, 0, 1])
            for i, (block, layer, head) in enumerate([(4, 0, 3), (0, 1, 0), (2, 2, 1)]):
                np.testing.assert_array_equal(got[i], expected_entry(keys, values, block, layer, head))
            whole = reader.fetch_layers(1)
            for layer in range(GEOMETRY.layers):
                for head in range(GEOMETRY.kv_heads):
                    np.testing.assert_array_equal(whole[layer, head], expected_entry(keys, values, 1, layer, head))
            summaries = reader.fetch_summaries(0, 4)
            first = keys[2, 16:32, 1]
            np.testing.assert_array_equal(summaries[1, 2, 1, 0], first.min(axis=0))
            np.testing.assert_array_equal(summaries[1, 2, 1, 1], first.max(axis=0))

    def test_topk_list_with_padding_duplicates_and_a_bad_number(self):
        keys, values = put(self.client, "topk", 2)
        with self.client.attach("topk", IDENTITY, GEOMETRY) as reader:
            into = np.full((5, *GEOMETRY.entry_shape), 7, dtype=GEOMETRY.dtype)
            reader.fetch_topk(1, 2, [3, -1, 0, 3, -1], into)
            for i, block in ((0, 3), (2, 0), (3, 3)):
                np.testing.assert_array_equal(into[i], expected_entry(keys, values, block, 1, 2))
            self.assertTrue((into[[1, 4]] == 7).all())
            with self.assertRaisesRegex(oasiskv.OutOfRange, "2"):
                reader.fetch_topk(1, 2, [0, 1, 99])
            with self.assertRaises(oasiskv.OutOfRange):
                reader.fetch_topk(1, 2, [0, -2])

    def test_async_fetch(self):
        keys, values = put(self.client, "async", 3)
        with self.client.attach("async", IDENTITY, GEOMETRY) as reader:
            fetch, into = reader.fetch_start([0, 1], 0, [0, 1])
            fetch.wait()
            self.assertTrue(fetch.done())
            np.testing.assert_array_equal(into[1], expected_entry(keys, values, 1, 0, 1))
            fetch.close()

    def test_each_refusal_has_its_own_class(self):
        put(self.client, "refusals", 4)
        reader = self.client.attach("refusals", IDENTITY, GEOMETRY, first_head=1, head_count=2)
        with self.assertRaises(oasiskv.OutOfRange):
            reader.fetch(5, 0, 1)
        with self.assertRaises(oasiskv.OutOfRange):
            reader.fetch(0, 3, 1)
        with self.assertRaises(oasiskv.Foreign):
            reader.fetch(0, 0, 0)
        with self.assertRaises(oasiskv.Foreign):
            reader.fetch(0, 0, 3)
        reader.release()
        with self.assertRaises(oasiskv.Stale):
            reader.fetch(0, 0, 1)
        aborted = self.client.attach("refusals", IDENTITY, GEOMETRY)
        self.assertEqual(self.client.abort("refusals", IDENTITY, "test"), 1)
        with self.assertRaises(oasiskv.Stale):
            aborted.fetch(0, 0, 1)
        with self.assertRaises(oasiskv.NotFound):
            self.client.attach("refusals", IDENTITY, GEOMETRY)

    def test_uncommitted_blocks_are_refused(self):
        keys, values = some_kv(6)
        producer = self.client.open("open", IDENTITY, GEOMETRY, blocks=5)
        producer.write_tokens(0, 0, keys[0, :40], values[0, :40])  # two and a half blocks of one layer
        with self.assertRaises(oasiskv.NotCommitted):
            producer.commit(0, 1, 2, 1)
        producer.commit_written()
        with self.client.attach("open", IDENTITY, GEOMETRY) as reader:
            self.assertFalse(reader.sealed)
            np.testing.assert_array_equal(reader.fetch(1, 0, 0)[0], expected_entry(keys, values, 1, 0, 0))
            for block, layer in ((2, 0), (0, 1)):
                with self.assertRaises(oasiskv.NotCommitted):
                    reader.fetch(block, layer, 0)
        with self.assertRaises(oasiskv.NotSealed):
            self.client.attach("open", IDENTITY, GEOMETRY, wait_for_seal=0.05)
        producer.close()  # aborts, in the background
        deadline = time.monotonic() + 20
        with self.assertRaises(oasiskv.NotFound):
            while time.monotonic() < deadline:
                self.client.attach("open", IDENTITY, GEOMETRY).close()
                time.sleep(0.01)

    def test_disagreement_names_the_field(self):
        put(self.client, "shape", 8)
        other = oasiskv.Geometry(layers=3, kv_heads=4, head_dim=16, block_tokens=32,
                                 element_type=oasiskv.ElementType.FLOAT16)
        with self.assertRaisesRegex(oasiskv.GeometryMismatch, "block_tokens.*16.*32"):
            self.client.attach("shape", IDENTITY, other)

    def test_another_identity_is_another_name_space_or_refused(self):
        put(self.client, "tenant", 9)
        with self.assertRaises((oasiskv.IdentityMismatch, oasiskv.NotFound)):
            self.client.attach("tenant", oasiskv.Identity("test/model", "rev-2"), GEOMETRY)
        with self.assertRaises((oasiskv.IdentityMismatch, oasiskv.NotFound)):
            self.client.attach("tenant", oasiskv.Identity("test/model", "rev-1", "other"), GEOMETRY)

    def test_bad_arguments_are_exceptions(self):
        with self.assertRaises(oasiskv.InvalidArgument):
            self.client.open("", IDENTITY, GEOMETRY, blocks=1)
        with self.assertRaises(oasiskv.InvalidArgument):
            self.client.open("bad", IDENTITY, oasiskv.Geometry(layers=0, kv_heads=1, head_dim=1))
        producer = self.client.open("bad-dtype", IDENTITY, GEOMETRY, blocks=1)
        with self.assertRaises(ValueError):
            producer.write_tokens(0, 0, np.zeros((16, 4, 16), np.float32), np.zeros((16, 4, 16), np.float32))
        producer.close()
        with self.assertRaises(ValueError):
            producer.extend(1)

    def test_the_gil_is_free_during_a_wait(self):
        ticks = 0
        stop = threading.Event()

        def count():
            nonlocal ticks
            while not stop.is_set():
                ticks += 1
                time.sleep(0.001)

        counter = threading.Thread(target=count)
        counter.start()
        with self.assertRaises((oasiskv.NotFound, oasiskv.NotSealed)):
            self.client.attach("never", IDENTITY, GEOMETRY, wait_for_seal=0.5)
        stop.set()
        counter.join()
        self.assertGreater(ticks, 20)


class Crc32cTest(unittest.TestCase):
    def test_known_value_of_any_buffer(self):
        data = b"123456789"
        frozen = np.frombuffer(data, dtype=np.uint8)
        self.assertFalse(frozen.flags.writeable)
        for buffer in (data, bytearray(data), memoryview(data), frozen, frozen.copy()):
            self.assertEqual(oasiskv.crc32c(buffer), 0xE3069283)
        self.assertEqual(oasiskv.crc32c(data[4:], oasiskv.crc32c(data[:4])), 0xE3069283)

    def test_halves_and_nothing(self):
        halves = np.arange(6, dtype=np.float16).reshape(2, 3)
        self.assertEqual(oasiskv.crc32c(halves), oasiskv.crc32c(halves.tobytes()))
        self.assertEqual(oasiskv.crc32c(b"", 7), 7)
        self.assertEqual(oasiskv.crc32c(np.empty((0, 4))), 0)


class ShmClientTest(ClientTest):
    fabric = "shm"


class UcxClientTest(ClientTest):
    fabric = "ucx"


class VerbsTest(unittest.TestCase):
    def test_a_device_that_is_not_there_is_named_with_those_that_are(self):
        daemon = Daemon()
        self.addCleanup(daemon.stop)
        with self.assertRaisesRegex(oasiskv.Unsupported, "'nosuch0'; devices seen: "):
            oasiskv.Client(daemon.address, "verbs", verbs_device="nosuch0", verbs_port=1, verbs_gid_index=0)
        with self.assertRaisesRegex(oasiskv.InvalidArgument, "verbs_port 256"):
            oasiskv.Client(daemon.address, "verbs", verbs_port=256)


def _in_child(client, queue):
    try:
        client.health()
        queue.put("no error")
    except oasiskv.WrongState as e:
        queue.put(str(e))


class LifeTest(unittest.TestCase):
    def test_a_dead_daemon_is_an_error_not_a_hang(self):
        daemon = Daemon()
        client = oasiskv.Client(daemon.address, rpc_timeout=1)
        put(client, "doomed", 1)
        reader = client.attach("doomed", IDENTITY, GEOMETRY)
        daemon.kill()
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                reader.fetch(0, 0, 0)
            except (oasiskv.PeerLost, oasiskv.Stale):
                break
        else:
            self.fail("a fetch from a dead daemon went on succeeding")
        with self.assertRaises((oasiskv.PeerLost, oasiskv.DeadlineExceeded)):
            client.attach("doomed", IDENTITY, GEOMETRY)
        reader.close()
        client.close()
        daemon.stop()

    def test_lost_answers_change_nothing(self):
        """Rule 8 of server/lease/README.md: each call, with answers that are lost."""
        for fabric in ("shm", "ucx"):
            daemon = Daemon("--lose_answers=30", "--lose_answers_seed=9")
            with oasiskv.Client(daemon.address, fabric) as client:
                for seed in range(200):
                    keys, values = put(client, "s", seed, blob=b"%d" % seed)
                    with client.attach("s", IDENTITY, GEOMETRY) as reader:
                        self.assertEqual(reader.blob, b"%d" % seed)
                        block, layer, head = seed % 5, seed % 3, seed % 4
                        np.testing.assert_array_equal(reader.fetch(block, layer, head)[0],
                                                      expected_entry(keys, values, block, layer, head))
                    if seed % 2:
                        self.assertTrue(client.release_sequence("s", IDENTITY))
                    else:
                        client.abort("s", IDENTITY)
                    with self.assertRaises(oasiskv.NotFound):
                        client.attach("s", IDENTITY, GEOMETRY)
            daemon.stop()

    def test_an_expired_grant_is_lease_expired(self):
        daemon = Daemon("--default_lease=1s")
        client = oasiskv.Client(daemon.address, rpc_timeout=0.3)
        put(client, "leased", 1)
        reader = client.attach("leased", IDENTITY, GEOMETRY)
        daemon.process.send_signal(signal.SIGSTOP)  # renewals fail; the holder's own clock ends the lease
        deadline = time.monotonic() + 20
        error = None
        while time.monotonic() < deadline and not isinstance(error, oasiskv.LeaseExpired):
            try:
                reader.fetch(0, 0, 0)
            except oasiskv.OasisError as e:
                error = e
        daemon.process.send_signal(signal.SIGCONT)
        self.assertIsInstance(error, oasiskv.LeaseExpired)
        while time.monotonic() < deadline:  # the daemon was stopped too: it expired nobody, and the lease comes back
            try:
                reader.fetch(0, 0, 0)
                break
            except oasiskv.LeaseExpired:
                time.sleep(0.05)
        else:
            self.fail("the lease did not come back after the daemon went on")
        reader.close()
        client.close()
        daemon.stop()

    def test_nobody_listens(self):
        with self.assertRaisesRegex(oasiskv.PeerLost, "127.0.0.1:1"):
            oasiskv.Client("127.0.0.1:1", rpc_timeout=1)

    def test_a_forked_child_is_refused(self):
        daemon = Daemon()
        client = oasiskv.Client(daemon.address)
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        child = context.Process(target=_in_child, args=(client, queue))
        child.start()
        self.assertIn("fork", queue.get(timeout=30))
        child.join(30)
        client.close()
        daemon.stop()


if __name__ == "__main__":
    unittest.main()
