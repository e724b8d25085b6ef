"""What the demo runs by default."""

import sys
import unittest
from importlib import util
from unittest import mock

if not util.find_spec("matplotlib"):
    raise unittest.SkipTest("matplotlib is missing (tools/demo/requirements.txt)")

import run_demo


class Configurations(unittest.TestCase):
    def options(self, *arguments):
        with mock.patch.object(sys, "argv", ["run_demo.py", *arguments]):
            return run_demo.parse()

    def test_both_modes_with_every_ratio_and_predictor(self):
        configs = run_demo.configurations(self.options())
        for mode in ("capped", "exact"):
            self.assertEqual({c["ratio"] for c in configs[1:-1] if c["mode"] == mode}, {0.05, 0.2, 1.0})
            self.assertEqual({c["predictor"] for c in configs[1:-1] if c["mode"] == mode},
                             {"previous", "ngram", "oracle"})
        self.assertEqual({c["budget_blocks"] for c in configs[1:]}, {4096 // 16 // 4})
        # The whole context and what is decoded fit the first one.
        self.assertGreaterEqual(configs[0]["budget_blocks"] * 16, 4096 + self.options().generate)
        self.assertEqual(configs[-1]["score"], "published")

    def test_a_context_that_the_model_has_no_room_for_is_refused(self):
        with self.assertRaises(SystemExit), mock.patch("sys.stderr"):
            self.options("--context", "8192")


if __name__ == "__main__":
    unittest.main()
