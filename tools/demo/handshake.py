"""What the prefill worker tells the decode worker besides the sequence itself: one JSON file.

Everything about KV travels through the daemon; this file holds the request (name, address, tokens)
and, for the comparison, what full attention computed.
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
    free_running: list[int]  # tokens when each is fed back


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
        """The file appears whole."""
        beside = path.with_suffix(".tmp")
        beside.write_text(json.dumps(asdict(self)))
        os.replace(beside, path)

    @staticmethod
    def read(path: Path) -> "Handshake":
        fields = json.loads(path.read_text())
        return Handshake(**{**fields, "baseline": Baseline(**fields["baseline"])})
