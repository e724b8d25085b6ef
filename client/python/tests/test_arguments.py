"""Wrong arguments and calls at the wrong time are exceptions: never a signal, never another block."""

import copy
import pickle
import threading
import unittest

import numpy as np

import oasiskv
from daemon import Daemon
from fixture import GEOMETRY, IDENTITY, expected_entry, put


class ArgumentTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon()
        cls.client = oasiskv.Client(cls.daemon.address)
        cls.kv = put(cls.client, "kv", 1)
        cls.reader = cls.client.attach("kv", IDENTITY, GEOMETRY)

    @classmethod
    def tearDownClass(cls):
        cls.reader.close()
        cls.client.close()
        cls.daemon.stop()

    def refused(self, error, words, call):
        with self.assertRaisesRegex(error, words):
            call()

    def test_a_number_that_does_not_fit_is_named(self):
        client, reader = self.client, self.reader
        self.refused(ValueError, "block is 4294967299", lambda: reader.fetch_layers(2**32 + 3))
        self.refused(ValueError, "first_block is -1", lambda: reader.fetch_summaries(-1, 1))
        self.refused(ValueError, "blocks is 4294967301", lambda: client.open("n", IDENTITY, GEOMETRY, blocks=2**32 + 5))
        self.refused(TypeError, "blocks is 1.5", lambda: client.open("n", IDENTITY, GEOMETRY, blocks=1.5))
        self.refused(ValueError, "blocks holds 4294967296", lambda: reader.fetch(2**32, 0, 0))
        self.refused(ValueError, "blocks holds -1", lambda: reader.fetch([-1], 0, 0))
        with client.open("open", IDENTITY, GEOMETRY, blocks=2) as producer:
            self.refused(ValueError, "block_count is 4294967298", lambda: producer.commit(0, 1, 0, 2**32 + 2))
            self.refused(ValueError, "blocks is 4294967297", lambda: producer.extend(2**32 + 1))
            self.refused(ValueError, "token_count is -1", lambda: producer.seal(-1))
        self.refused(ValueError, "head_dim is -16", lambda: oasiskv.Geometry(3, 4, -16).entry_bytes)
        with oasiskv.WorkingSet(GEOMETRY, 4, resident_blocks=4) as working_set:
            self.refused(ValueError, "slots holds 4294967296", lambda: working_set.wait(0, [2**32]))
            self.refused(TypeError, "slots holds float64", lambda: working_set.wait(0, [0.5]))

    def test_no_fraction_becomes_a_block(self):
        for wrong in ([1.7], [float("nan")], ["1"], [None], [True]):
            self.refused(TypeError, "blocks holds", lambda: self.reader.fetch(wrong, 0, 0))
            self.refused(TypeError, "blocks holds", lambda: self.reader.fetch_topk(0, 0, wrong))
        got = self.reader.fetch(np.array([1], np.int64), np.int8(0), 0)
        np.testing.assert_array_equal(got[0], expected_entry(*self.kv, 1, 0, 0))

    def test_text_is_text(self):
        client = self.client
        self.refused(TypeError, "address is 7400", lambda: oasiskv.Client(7400))
        self.refused(TypeError, "fabric is 1", lambda: oasiskv.Client(self.daemon.address, 1))
        self.refused(TypeError, "name is 7", lambda: client.open(7, IDENTITY, GEOMETRY))
        self.refused(TypeError, "name is 12345", lambda: client.attach(12345, IDENTITY, GEOMETRY))
        self.refused(TypeError, "model is 7", lambda: client.open("x", oasiskv.Identity(7), GEOMETRY))
        # C strings end at a zero byte: two identities would become one.
        secret = oasiskv.Identity("m\0secret")
        self.refused(ValueError, "model is .* zero byte", lambda: client.open("x", secret, GEOMETRY))
        self.refused(ValueError, "name is .* zero byte", lambda: client.abort("kv\0", IDENTITY))

    def test_times_are_not_negative(self):
        self.refused(ValueError, "timeout is -1", lambda: self.reader.fetch(0, 0, 0, timeout=-1))
        self.refused(ValueError, "timeout is nan", lambda: self.reader.fetch(0, 0, 0, timeout=float("nan")))
        self.refused(ValueError, "lease is -1", lambda: self.client.open("n", IDENTITY, GEOMETRY, lease=-1))

    def test_a_handle_has_one_owner(self):
        for make in (copy.copy, copy.deepcopy, pickle.dumps):
            self.refused(TypeError, "a reader cannot be", lambda: make(self.reader))

    def test_a_view_outlives_its_working_set(self):
        working_set = oasiskv.WorkingSet(GEOMETRY, 4, resident_blocks=8)
        source = oasiskv.Source(self.reader)
        slot = working_set.admit(source)
        working_set.wait(0, [slot])
        view = working_set.view(0, slot)
        before = view.pages.copy()
        working_set.close()
        source.close()
        np.testing.assert_array_equal(view.pages, before)
        self.refused(ValueError, "closed", lambda: working_set.view(0, slot))

    def test_close_beside_calls_of_another_thread(self):
        def until_closed(call):
            try:
                while True:
                    call()
            except ValueError as e:
                self.assertIn("closed", str(e))

        def run(call, count=3):
            threads = [threading.Thread(target=until_closed, args=(call,)) for _ in range(count)]
            for thread in threads:
                thread.start()
            return threads

        for _ in range(20):
            client = oasiskv.Client(self.daemon.address)
            reader = client.attach("kv", IDENTITY, GEOMETRY)
            threads = run(lambda: client.attach("kv", IDENTITY, GEOMETRY).close())
            threads += run(lambda: reader.fetch([0, 1, 2], 0, 0))
            reader.close()
            client.close()
            for thread in threads:
                thread.join()


if __name__ == "__main__":
    unittest.main()
