"""Length of files, paths of one machine, syntax of scripts. Usage: hygiene.py ROOT"""

import pathlib
import re
import subprocess
import sys

import tree

CODE = {".h", ".cc", ".c", ".cu", ".cuh", ".py", ".sh", ".cmake", ".proto"}
MAX_LINES = 600
TEXT = CODE | {"", ".md", ".txt", ".json", ".in", ".map", ".toml", ".yml", ".yaml", ".cfg"}
# A home directory, or a checkout's place on somebody's machine.
MACHINE_PATH = re.compile(r"(?<![\w.$}/-])/(home|root|Users|work)/[\w.-]+")


def check(root):
    root = pathlib.Path(root)
    findings = []
    for path in tree.files(root):
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
