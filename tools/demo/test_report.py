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
        checksum_failures=0, grant_checks=3, stale_reads=0, bytes_moved=2**20,
    )
    return {**fields, **changes}


def build(rows=None, **changes) -> dict:
    everything = changes.pop("everything", row("exact", 1.0, "previous"))
    published = changes.pop("published", row("exact", 0.2, "previous", score="published"))
    rows = rows or [row(), row("exact", 0.2, "previous"), row(predictor="oracle", topk_agreement=1.0)]
    handshake = Handshake("127.0.0.1:1", "s", 256, [1] * 259, "crc.npz", 1.0, 0.5, Baseline([1.0, 1.0], [3, 3], [4]))
    return reporting.build(
        handshake, rows, backend=changes.pop("backend", "cpu"), everything=everything, published=published,
        text={"prompt": "p", "full": "f", "sparse": "s", **changes.pop("text", {})}, kv_token_bytes=46080, seconds=1.0,
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
        same, other = (row(same_as_cpu=value) for value in (True, False))
        self.assertRegex(unmet(build([same, other]))[0], "cpu backend")
        self.assertRegex(unmet(build([same], text={"same_as_cpu": False}))[0], "cpu backend")
        self.assertEqual(unmet(build([same])), [])

    def test_the_table_says_where_the_cpu_backend_differs(self):
        counts = dict(predicted=9, hit=8, admitted=3, demanded=0, refused_by_cap=1)
        rows = [row(**counts, same_as_cpu=same, cpu_tokens_equal=2, cpu_nlls_equal=equal, cpu_nll=1.02, cpu_ms_per_step=5.0,
                    cpu_counts={**counts, "hit": hit}) for same, equal, hit in ((True, 2, 8), (False, 1, 7))]
        table = reporting.table(build([rows[0]], everything=rows[1], published=rows[0]))
        self.assertIn("2 of 2 tokens equal, 2 of 2 nlls to the last bit; counts equal; 5 ms", table)
        self.assertIn("1 of 2 nlls to the last bit; counts differ in hit", table)

    def test_what_the_gpu_read_is_in_the_table_of_the_cuda_backend_alone(self):
        self.assertIn("The GPU moved 5.0 MiB", reporting.table(build(backend="cuda")))
        self.assertNotIn("The GPU", reporting.table(build()))

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
