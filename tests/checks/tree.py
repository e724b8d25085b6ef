"""Which files belong to the source tree."""

import os
import pathlib
import subprocess

SKIPPED_FOLDERS = {".git", "build", "install", "__pycache__", ".cache"}


def files(root, suffixes=None):
    """Paths relative to `root`, sorted: what git knows or would add, else (no repository) every file."""
    root = pathlib.Path(root)
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True, check=False)
    if listed.returncode == 0:
        paths = [pathlib.PurePosixPath(p) for p in listed.stdout.decode().split("\0") if p]
    else:
        paths = []
        for folder, folders, names in os.walk(root):
            folders[:] = [f for f in folders if f not in SKIPPED_FOLDERS]
            paths += [pathlib.PurePosixPath(os.path.relpath(os.path.join(folder, n), root)) for n in names]
    return sorted(p for p in paths
                  if (suffixes is None or p.suffix in suffixes) and (root / p).is_file())


def report(findings, what):
    """Prints the findings; the exit status of the check."""
    for finding in findings:
        print(finding)
    print(f"{what}: {len(findings)} findings" if findings else f"{what}: clean")
    return 1 if findings else 0
