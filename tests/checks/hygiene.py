"""Length of files, size of folders, paths of one machine, syntax of scripts. Usage: hygiene.py ROOT"""

import collections
import pathlib
import re
import subprocess
import sys

import tree

CODE = {".h", ".cc", ".c", ".cu", ".cuh", ".py", ".sh", ".cmake", ".proto"}
MAX_LINES = 600
MAX_FILES = 30
# Folders that may hold more, and why, such as a table of like things.
LARGE_FOLDERS = {}
TEXT = CODE | {"", ".md", ".txt", ".json", ".in", ".map", ".toml", ".yml", ".yaml", ".cfg"}
# A home directory, or a checkout's place on somebody's machine.
MACHINE_PATH = re.compile(r"(?<![\w.$}/-])/(home|root|Users|work)/[\w.-]+")


def folder_sizes(paths):
    """Folders with too many files, and exceptions that are not needed any more."""
    findings = []
    for folder, count in sorted(collections.Counter(path.parent.as_posix() for path in paths).items()):
        if count > MAX_FILES and folder not in LARGE_FOLDERS:
            findings.append(f"{folder}: {count} files, at most {MAX_FILES}: group them by subject")
        if count <= MAX_FILES and folder in LARGE_FOLDERS:
            findings.append(f"{folder}: {count} files: it needs no exception; remove it from LARGE_FOLDERS in hygiene.py")
    return findings


def check(root):
    root = pathlib.Path(root)
    paths = tree.files(root)
    findings = folder_sizes(paths)
    for path in paths:
        if path.suffix not in TEXT:
            continue
        try:
            text = (root / path).read_text()
        except UnicodeDecodeError:
            continue
        lines = text.splitlines()
        if path.suffix in CODE and len(lines) > MAX_LINES:
            findings.append(f"{path}: {len(lines)} lines, at most {MAX_LINES}: a second idea wants a second file")
        for number, line in enumerate(lines, 1):
            match = MACHINE_PATH.search(line)
            if match:
                findings.append(f"{path}:{number}: '{match.group(0)}' is a path of one machine")
        if path.suffix == ".sh" or text.startswith("#!/usr/bin/env bash"):
            shell = subprocess.run(["bash", "-n", str(root / path)], capture_output=True, text=True, check=False)
            if shell.returncode != 0:
                findings.append(f"{path}: {shell.stderr.strip()}")
        if path.suffix == ".py":
            try:
                compile(text, str(path), "exec")
            except SyntaxError as error:
                findings.append(f"{path}:{error.lineno}: {error.msg}")
    return findings


if __name__ == "__main__":
    sys.exit(tree.report(check(sys.argv[1]), "hygiene"))
