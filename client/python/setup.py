"""Copies the built liboasiskv.so into the package, so that an installed package needs no search path.

The library is taken from OASISKV_LIBRARY, or else from the newest build below build/ of this tree.
"""

import os
import pathlib
import shutil

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

TREE = pathlib.Path(__file__).resolve().parents[2]


def built_library() -> pathlib.Path:
    named = os.environ.get("OASISKV_LIBRARY")
    if named:
        path = pathlib.Path(named)
        if not path.is_file():
            raise SystemExit(f"OASISKV_LIBRARY is {named}, which is not a file")
        return path
    found = sorted(TREE.glob("build/*/lib/liboasiskv.so"), key=lambda p: p.stat().st_mtime)
    if not found:
        raise SystemExit(
            "there is no liboasiskv.so below build/: build it (cmake --preset release && cmake --build "
            "--preset release --target oasiskv), or set OASISKV_LIBRARY to its path"
        )
    return found[-1]


class BuildWithLibrary(build_py):
    def run(self):
        super().run()
        target = pathlib.Path(self.build_lib) / "oasiskv" / "liboasiskv.so"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(built_library(), target)


class PlatformDistribution(Distribution):
    def has_ext_modules(self):  # the wheel contains a compiled library, so it is not an "any" wheel
        return True


setup(cmdclass={"build_py": BuildWithLibrary}, distclass=PlatformDistribution)
