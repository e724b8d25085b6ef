"""Messages between the demo's processes: a worker prints one JSON object per line, run_demo.py reads them.

A worker ends when its stdin is closed.
"""

import json
import os
import subprocess
import sys
from pathlib import Path


class WorkerFailed(Exception):
    """A worker ended early; the text has the end of its log."""


def emit(event: str, **fields) -> None:
    """Worker side: prints one event."""
    print(json.dumps({"event": event, **fields}), flush=True)


def wait_until_unwanted() -> None:
    """Worker side: returns when the parent closes stdin."""
    sys.stdin.read()


class Worker:
    """Thread contract: one thread. The parent's side of one worker process; its stderr goes to a log file.

    numpy's matrix products use one thread unless OPENBLAS_NUM_THREADS is set: several threads spin while
    they wait for each other, which is slow on a machine that others use too, and the other cores are for
    the working set's own threads.
    """

    def __init__(self, name: str, arguments: list[str], log: Path):
        self._name = name
        self._log = log
        with open(log, "w") as stream:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                env={"OPENBLAS_NUM_THREADS": "1", **os.environ},
            )

    def events(self, last: str):
        """Yields events up to and including the first one called `last`; WorkerFailed if it never comes."""
        for line in self._process.stdout:
            event = json.loads(line)
            yield event
            if event["event"] == last:
                return
        code = self._process.wait()
        raise WorkerFailed(f"{self._name} ended with exit code {code}; {tail(self._log)}")

    def finish(self, timeout: float = 30) -> None:
        self._process.stdin.close()
        code = self._process.wait(timeout)
        if code != 0:
            raise WorkerFailed(f"{self._name} ended with exit code {code}; {tail(self._log)}")

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def tail(log: Path, lines: int = 15) -> str:
    text = log.read_text(errors="replace").splitlines()[-lines:] if log.exists() else []
    return f"its log ({log}) ends:\n  " + "\n  ".join(text)
