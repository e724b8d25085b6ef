"""Runs PROGRAM, the C++ example of the top README, against a daemon of its own. Usage: run_example.py OASISKVD PROGRAM"""

import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "client/python/tests"))
from daemon import Daemon  # noqa: E402

os.environ["OASISKVD"] = sys.argv[1]
daemon = Daemon()
try:
    sys.exit(subprocess.run([sys.argv[2], daemon.address], timeout=60, check=False).returncode)
finally:
    daemon.stop()
