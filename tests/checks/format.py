"""Every C and C++ file is as clang-format leaves it. Usage: format.py ROOT [CLANG_FORMAT]

The output differs between releases of clang-format; the tree follows that of Debian 12. With another one the check ends
with status 77 (skipped) and says so.
"""

import re
import subprocess
import sys

import tree

RELEASE = 14
SKIPPED = 77


def check(root, clang_format):
    paths = [str(p) for p in tree.files(root, {".h", ".cc", ".c", ".cu", ".cuh"})]
    if not paths:
        return []
    run = subprocess.run([clang_format, "--dry-run", "--ferror-limit=1", *paths], cwd=root,
                         capture_output=True, text=True, check=False)
    found = sorted({m.group(1) for m in re.finditer(r"^(\S+?):\d+:\d+: (?:warning|error):", run.stderr, re.M)})
    if run.returncode != 0 and not found:
        return [run.stderr.strip()]
    return [f"{path}: not formatted; fix it with: clang-format -i {path}" for path in found]


def main():
    clang_format = sys.argv[2] if len(sys.argv) > 2 else "clang-format"
    try:
        version = subprocess.run([clang_format, "--version"], capture_output=True, text=True, check=True).stdout
    except OSError:
        print(f"format: skipped, needs {clang_format} (tools/install-deps.sh installs it)")
        return SKIPPED
    match = re.search(r"version (\d+)", version)
    if not match or int(match.group(1)) != RELEASE:
        print(f"format: skipped, needs clang-format {RELEASE}, found: {version.strip()}")
        return SKIPPED
    return tree.report(check(sys.argv[1], clang_format), "format")


if __name__ == "__main__":
    sys.exit(main())
