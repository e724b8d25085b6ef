"""Starts and stops one oasiskvd for the demo, on free ports, with a pool that fits the context."""

import json
import subprocess
import time
from pathlib import Path

from events import tail

START_SECONDS = 60


class DaemonFailed(Exception):
    """The daemon did not start; the text has the end of its log."""


class Daemon:
    """Thread contract: one thread. stop() or the end of a `with` ends the process."""

    def __init__(self, program: Path, directory: Path, pool_bytes: int, more_flags: list[str] | None = None):
        if not program.is_file():
            raise DaemonFailed(
                f"there is no {program}; build it (cmake --build --preset release --target oasiskvd) "
                "or set --build-dir"
            )
        slab = 64 << 20
        pool = -(-pool_bytes // slab) * slab
        ready = directory / "oasiskvd.json"
        ready.unlink(missing_ok=True)
        self.log = directory / "oasiskvd.log"
        with open(self.log, "w") as stream:
            self._process = subprocess.Popen(
                [
                    str(program),
                    "--control_address=127.0.0.1:0",
                    "--metrics_address=127.0.0.1:0",
                    "--ucx_address=127.0.0.1:0",
                    f"--shm_socket={directory / 'oasiskvd.sock'}",
                    f"--pool_bytes={pool}",
                    f"--slab_bytes={slab}",
                    "--drain_timeout=1s",
                    f"--ready_file={ready}",
                    *(more_flags or []),
                ],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
            )
        deadline = time.monotonic() + START_SECONDS
        while not ready.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise DaemonFailed(f"oasiskvd did not start; {tail(self.log)}")
            time.sleep(0.02)
        self.address = json.loads(ready.read_text())["control_address"]
        self.pool_bytes = pool

    def stop(self) -> int:
        """Ends the daemon with SIGTERM (SIGKILL after 30 s); returns its exit code."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        return self._process.returncode

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.stop()
