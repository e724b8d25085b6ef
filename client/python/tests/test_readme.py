"""The Python example of the top README works when it is pasted."""

import pathlib
import re
import subprocess
import sys
import unittest

from daemon import Daemon

README = pathlib.Path(__file__).parents[3] / "README.md"
ADDRESS = "127.0.0.1:7400"  # what the example says; a test's daemon has a port of its own


class Readme(unittest.TestCase):
    def setUp(self):
        self.daemon = Daemon()
        self.addCleanup(self.daemon.stop)

    def test_python_example(self):
        blocks = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.M | re.S)
        self.assertEqual(len(blocks), 1, "README.md has one Python example")
        self.assertIn(ADDRESS, blocks[0])
        program = blocks[0].replace(ADDRESS, self.daemon.address)
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertNotIn("-1", run.stdout, "a page of the working set is empty")


if __name__ == "__main__":
    unittest.main()
