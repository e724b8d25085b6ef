"""Puts the built liboasiskv.so into the package, so that an installed package needs no search path.

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
            raise SystemExit(f"OASISKV_LIBRARY names {named}, which is no file")
        return path
    found = sorted(TREE.glob("build/*/lib/liboasiskv.so"), key=lambda p: p.stat().st_mtime)
    if not found:
        raise SystemExit(
            "no liboasiskv.so below build/: build it first (cmake --preset release && cmake --build "
            "--preset release --target oasiskv), or name it with OASISKV_LIBRARY"
        )
    return found[-1]


class BuildWithLibrary(build_py):
    def run(self):
        super().run()
        target = pathlib.Path(self.build_lib) / "oasiskv" / "liboasiskv.so"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(built_library(), target)


class PlatformDistribution(Distribution):
    def has_ext_modules(self):  # the wheel holds a compiled library: it is no "any" wheel
        return True


setup(cmdclass={"build_py": BuildWithLibrary}, distclass=PlatformDistribution)
