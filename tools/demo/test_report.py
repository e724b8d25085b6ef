"""What the report says a run has shown."""

import json
import tempfile
import unittest
from importlib import util
from pathlib import Path

import numpy as np

import report as reporting
from decode_worker import standard_error
from handshake import Baseline, Handshake

KEYS = ("context_tokens", "generated_tokens", "budget_tokens", "fetch_ratio", "full_kv_bytes", "admission_bytes",
        "decode_bytes", "topk_agreement", "token_match", "nll_full", "nll_sparse", "grant_checks", "stale_reads")


def row(mode="capped", ratio=0.05, predictor="ngram", **changes) -> dict:
    fields = dict(
        mode=mode, fetch_ratio=ratio, predictor=predictor, budget_blocks=4, score="normalized", nll_sparse=1.02,
        nll_extra=0.02, nll_extra_error=0.01, token_match=1.0, ms_per_step=9.0, admission_bytes=4096,
        decode_bytes=1024, topk_agreement=0.9, entries_fetched=10, entries_checked=8, checksums_verified=10,
        checksum_failures=0, grant_checks=3, stale_reads=0,
    )
    return {**fields, **changes}


def build(rows=None, **changes) -> dict:
    everything = changes.pop("everything", row("exact", 1.0, "previous"))
    rows = rows or [row(), row("exact", 0.2, "previous"), row(predictor="oracle", topk_agreement=1.0)]
    handshake = Handshake("127.0.0.1:1", "s", 256, [1] * 259, "crc.npz", 1.0, 0.5, Baseline([1.0, 1.0], [3, 3], [4]))
    return reporting.build(
        handshake, rows, everything=everything, published=row("exact", 0.2, "previous", score="published"),
        text={"prompt": "p", "full": "f", "sparse": "s"}, kv_token_bytes=46080, seconds=1.0,
    )


def unmet(report: dict) -> list[str]:
    return [what for what, good in reporting.checks(report) if not good]


class Report(unittest.TestCase):
    def test_has_the_keys_that_others_read_and_the_headline_row(self):
        report = build()
        for key in KEYS:
            self.assertIn(key, report)
        self.assertEqual((report["nll_full"], report["nll_sparse"]), (1.0, 1.02))
        self.assertEqual(report["topk_agreement"], {"ngram": 0.9, "previous": 0.9, "oracle": 1.0})
        self.assertEqual(report["grant_checks"], 15)
        self.assertIn("±0.010", reporting.table(report))
        self.assertEqual(unmet(report), [])

    def test_each_thing_that_must_be_shown_can_fail(self):
        self.assertRegex(unmet(build(everything=row("exact", 1.0, token_match=0.99)))[0], "every block resident")
        self.assertRegex(unmet(build([row("exact", 0.2, nll_extra=0.051)]))[0], "at most 0.05")
        self.assertRegex(unmet(build([row(stale_reads=1)]))[0], "stale")
        self.assertRegex(unmet(build([row(checksum_failures=1)]))[0], "CRC32C")
        self.assertRegex(unmet(build([row(checksums_verified=9)]))[0], "CRC32C")
        self.assertRegex(unmet(build([row(same_as_cpu=True), row(same_as_cpu=False)]))[0], "cpu backend")
        self.assertEqual(unmet(build([row(same_as_cpu=True)])), [])

    def test_written_whole(self):
        with tempfile.TemporaryDirectory() as directory:
            reporting.write(build(), Path(directory) / "report.json")
            self.assertEqual([file.name for file in Path(directory).iterdir()], ["report.json"])
            self.assertEqual(json.loads((Path(directory) / "report.json").read_text()), build())

    @unittest.skipUnless(util.find_spec("matplotlib"), "matplotlib is missing (tools/demo/requirements.txt)")
    def test_drawn(self):
        import plot

        with tempfile.TemporaryDirectory() as directory:
            plot.draw(build(), Path(directory) / "plot.png")
            self.assertEqual((Path(directory) / "plot.png").read_bytes()[:4], b"\x89PNG")

    def test_standard_error(self):
        self.assertAlmostEqual(standard_error(np.array([1.0, 2.0, 3.0, 4.0])), (5 / 3) ** 0.5 / 2)
        self.assertEqual(standard_error(np.array([1.0])), 0.0)


if __name__ == "__main__":
    unittest.main()
