"""A real oasiskvd for the tests; OASISKVD names the program."""

import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time


class Daemon:
    """One daemon on free ports with a small pool. stop() ends it as an operator would."""

    def __init__(self, *flags: str):
        self.directory = tempfile.TemporaryDirectory(prefix="oasiskv-test-")
        where = pathlib.Path(self.directory.name)
        ready = where / "ready.json"
        self.log = open(where / "log", "w+")
        self.process = subprocess.Popen(
            [os.environ["OASISKVD"], "--control_address=127.0.0.1:0", "--metrics_address=", f"--shm_socket={where}/shm.sock",
             "--ucx_address=127.0.0.1:0", "--pool_bytes=64MiB", "--slab_bytes=4MiB", "--drain_timeout=100ms",
             f"--ready_file={ready}", *flags],
            stderr=self.log)
        deadline = time.monotonic() + 30
        while not ready.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.log.seek(0)
                raise RuntimeError("oasiskvd did not start:\n" + self.log.read())
            time.sleep(0.01)
        self.address = json.loads(ready.read_text())["control_address"]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(timeout=30)
        self.log.close()
        self.directory.cleanup()
