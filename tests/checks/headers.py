"""Every header compiles alone, and has a guard. Usage: headers.py ROOT CXX [FLAGS...]

A header whose own source (same stem) includes it first is proven by the build; every other one is compiled here. Public
headers always are, with nothing but the public include folders; those of the C ABI as C too. Others see the whole tree,
and FLAGS, which name the folder of generated headers. Headers of kernels (.cuh) must have their guard only: nvcc, without
which they cannot be compiled, is not on every machine that runs this.
"""

import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

import tree

PUBLIC = ("common/include/", "client/include/")
GUARD = re.compile(r"^#\s*(pragma once|ifndef \w+\s*\n#\s*define \w+)", re.M)
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.M)


def proven_by_build(root, header):
    source = root / header.with_suffix(".cc")
    first = INCLUDE.search(source.read_text()) if source.is_file() else None
    return first is not None and first.group(1) == header.as_posix()


def compile_alone(root, header, compiler, flags):
    """The compiler's complaint, or None."""
    name = header.as_posix()
    if not GUARD.search((root / header).read_text()):
        return f"{name} has no guard: #pragma once is missing"
    if header.suffix == ".cuh":
        return None
    if not name.startswith(PUBLIC) and proven_by_build(root, header):
        return None
    folders = [root / folder for folder in PUBLIC]
    if name.startswith(PUBLIC):
        flags = []
    else:
        folders.append(root)
    languages = [("c++", ["-std=c++20"])]
    if header.name in ("oasiskv.h", "oasiskv_gpu.h"):
        languages.append(("c", ["-std=c11"]))
    source = f'#include "{root / header}"\n'
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
    headers = tree.files(root, {".h", ".cuh"})
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = pool.map(lambda header: compile_alone(root, header, compiler, flags), headers)
        return [result for result in results if result]


if __name__ == "__main__":
    sys.exit(tree.report(check(sys.argv[1], sys.argv[2], sys.argv[3:]), "headers"))
