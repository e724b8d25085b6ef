"""Text, predictors, handshake and report."""

import tempfile
import unittest
from pathlib import Path

from handshake import Baseline, Handshake
from predictors import ngram, oracle, previous
from prose import TextError, load_prose, strip_markup


class Prose(unittest.TestCase):
    def test_only_text_outside_navigation_stays(self):
        html = """<html><head><title>T</title></head><body><div class="navheader"><p>nav</p></div>
          <h1><a id="x"/>Title</h1><div class="toc"><p>contents</p></div>
          <p>One <em>two</em>
          three&amp;<br/>four.</p><ul><li><p>Item</p></li></ul></body></html>"""
        self.assertEqual(strip_markup(html), "Title\n\nOne two three& four.\n\nItem")

    def test_a_missing_text_names_the_flag(self):
        with self.assertRaisesRegex(TextError, "--text"):
            load_prose(Path("/nonexistent/text"))


class Predictors(unittest.TestCase):
    def test_ngram_prefers_the_longest_then_the_latest_match(self):
        self.assertEqual(ngram([1, 2, 3, 9, 5, 3, 8, 1, 2, 3], 9), 9)
        self.assertEqual(ngram([7, 1, 7, 2, 7], 4), 2)

    def test_ngram_sees_nothing_past_the_position(self):
        self.assertIsNone(ngram([1, 2, 3, 1, 2], 2))
        self.assertIsNone(ngram([1], 0))

    def test_ngram_may_repeat_the_current_token(self):
        self.assertEqual(ngram([4, 4], 1), 4)

    def test_oracle_and_previous(self):
        self.assertEqual(oracle([1, 2, 3], 1), 3)
        self.assertIsNone(previous([1, 2, 3], 1))


class HandshakeFile(unittest.TestCase):
    def test_round_trip(self):
        handshake = Handshake("127.0.0.1:1", "s", 16, [1, 2], "crc.npz", 1.0, 0.5, Baseline([0.5], [3], [4]))
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "handshake.json"
            handshake.write(path)
            self.assertEqual(Handshake.read(path), handshake)


if __name__ == "__main__":
    unittest.main()
