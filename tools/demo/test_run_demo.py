"""What the demo runs by default."""

import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

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

    def test_without_matplotlib_the_run_says_so_and_leaves_no_old_plot(self):
        with tempfile.TemporaryDirectory() as directory, mock.patch.object(run_demo.util, "find_spec", return_value=None):
            plot = Path(directory) / "plot.png"
            plot.write_text("of an earlier run")
            self.assertIn("matplotlib is not installed", run_demo.draw_plot({}, plot))
            self.assertFalse(plot.exists())

    def test_a_backend_that_cannot_run_here_is_named_with_what_it_needs(self):
        failed = mock.Mock(returncode=1, stderr="no driver\n")
        with mock.patch.object(run_demo.subprocess, "run", return_value=failed):
            with self.assertRaisesRegex(run_demo.BackendMissing, "(?s)no driver.*NVIDIA GPU.*--backend=cpu"):
                run_demo.check_backend("cuda")
        run_demo.check_backend("cpu")


if __name__ == "__main__":
    unittest.main()
