"""Every header compiles alone, included twice. Usage: headers.py ROOT CXX [FLAGS...]

Public headers must compile with nothing but the public include folders; `oasiskv.h` as C too. Others see the whole tree.
"""

import concurrent.futures
import os
import pathlib
import subprocess
import sys

import tree

PUBLIC = ("common/include/", "client/include/")


def compile_alone(root, header, compiler, flags):
    """The compiler's complaint, or None."""
    name = header.as_posix()
    folders = [root / folder for folder in PUBLIC]
    if not name.startswith(PUBLIC):
        folders.append(root)
    languages = [("c++", ["-std=c++20"])]
    if header.name == "oasiskv.h":
        languages.append(("c", ["-std=c11"]))
    # Included twice, so that a missing #pragma once shows.
    source = f'#include "{root / header}"\n' * 2
    for language, standard in languages:
        run = subprocess.run(
            [compiler, "-x", language, *standard, "-fsyntax-only", "-Wall", "-Werror", *flags,
             *[f"-I{folder}" for folder in folders], "-"],
            input=source, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            first = next((line for line in run.stderr.splitlines() if "error" in line), run.stderr.strip())
            return f"{name} does not compile alone as {language}: {first}"
    return None


def check(root, compiler, flags):
    root = pathlib.Path(root).resolve()
    headers = tree.files(root, {".h"})
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = pool.map(lambda header: compile_alone(root, header, compiler, flags), headers)
        return [result for result in results if result]


if __name__ == "__main__":
    sys.exit(tree.report(check(sys.argv[1], sys.argv[2], sys.argv[3:]), "headers"))
