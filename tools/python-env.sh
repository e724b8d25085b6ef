#!/usr/bin/env bash
# Makes build/venv, the Python environment of the tests and the demo, and installs the given requirements into it once.
# Usage: tools/python-env.sh REQUIREMENTS.txt [-- PIP ARGUMENTS of a second, separate install]
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "python-env: $*"; }
fail() { say "$*" >&2; exit 1; }
[[ $# -ge 1 && -f $1 ]] || fail "usage: tools/python-env.sh REQUIREMENTS.txt [-- PIP ARGUMENTS]"
requirements=$1
shift
[[ ${1:-} != -- ]] || shift

venv=build/venv
if ! "$venv/bin/python" -m pip --version > /dev/null 2>&1; then
  python=${PYTHON:-python3}
  say "making $venv with $("$python" --version)"
  rm -rf "$venv"
  "$python" -m venv "$venv" ||
    fail "'$python -m venv' failed; tools/install-deps.sh installs python3-venv; PYTHON=/usr/bin/python3 names another interpreter"
fi

# One stamp per set of requirements: the same set is installed once.
stamp=$venv/.installed-$( { cat "$requirements"; echo "$@"; } | sha256sum | cut -c1-16)
if [[ -e $stamp ]]; then
  say "$venv has what $requirements asks for"
  exit 0
fi
pip() {
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@" < /dev/null ||
    fail "pip install $* failed, see above; is the Python package index reachable (pip config list)?"
}
say "pip install -r $requirements"
pip -r "$requirements"
if [[ $# -gt 0 ]]; then
  say "pip install $*"
  pip "$@"
fi
touch "$stamp"
