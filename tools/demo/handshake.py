"""The JSON file from the prefill worker to the decode worker.

All KV goes through the daemon; this file has the request (name, address, tokens) and, for the
comparison, the results of full attention.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Baseline:
    """Full attention over the same tokens."""

    nll: list[float]  # per teacher-forced step
    greedy: list[int]  # the most likely token after each teacher-forced step
    free_running: list[int]  # tokens of a run that feeds each one back


@dataclass(frozen=True)
class Handshake:
    address: str
    sequence: str
    context_tokens: int
    tokens: list[int]  # the context, then the document's own continuation
    crc_file: str  # .npz of `entries` and `summaries`, see verify.py
    prefill_seconds: float
    store_seconds: float
    baseline: Baseline

    def write(self, path: Path) -> None:
        """Writes another file and renames it, so that the file appears complete."""
        beside = path.with_suffix(".tmp")
        beside.write_text(json.dumps(asdict(self)))
        os.replace(beside, path)

    @staticmethod
    def read(path: Path) -> "Handshake":
        fields = json.loads(path.read_text())
        return Handshake(**{**fields, "baseline": Baseline(**fields["baseline"])})
