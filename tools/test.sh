#!/usr/bin/env bash
# One command that installs what is missing, builds, and runs the tests. Safe to run again: what is done is not done twice.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat << 'USAGE'
usage: tools/test.sh [options]
  (none)         all tests in the release build, then those that the sanitizers can add most to under asan and tsan
  --preset NAME  all tests of that preset and no other: release, debug, asan, tsan, thread-safety
  --label L      only tests of this label: unit, integration, python, consumer, checks
  --rdma         only the tests on RDMA devices, in a virtual machine (installs QEMU; about 2 minutes after the build)
  --ci           as without options, and Clang's lock analysis of the product (compiled, not run)
  --full         all tests in release, asan, tsan and thread-safety (Clang's lock analysis)
  --no-install   do not look for missing Debian packages
  -h, --help     this text
USAGE
}

say() { echo; echo "test: $* [${SECONDS}s]"; }
fail() { echo "test: $*" >&2; exit 1; }

install=yes
presets=()
full=no
ci=no
rdma=no
label=()
while [[ $# -gt 0 ]]; do
  case "$1" in
    --preset) presets=("${2:?--preset needs a name, e.g. release}"); shift ;;
    --label) label=(-L "^${2:?--label needs a name, e.g. unit}\$"); shift ;;
    --full) full=yes ;;
    --ci) ci=yes ;;
    --rdma) rdma=yes ;;
    --no-install) install=no ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; fail "unknown argument '$1'" ;;
  esac
  shift
done

jobs=$(nproc)

# build PRESET [NINJA TARGETS...]
build() {
  local preset=$1
  shift
  say "configuring build/$preset"
  cmake --preset "$preset" > build/"$preset".configure.log 2>&1 || {
    cat build/"$preset".configure.log >&2
    fail "cmake --preset $preset failed, see above"
  }
  say "building build/$preset ${*:+(only $*)}"
  cmake --build --preset "$preset" ${1:+--target "$@"} ||
    fail "the build of preset $preset failed, see above; to repeat it: cmake --build --preset $preset"
}

# run PRESET [CTEST ARGUMENTS...]
run() {
  local preset=$1
  shift
  say "running the tests of build/$preset $*"
  ctest --preset "$preset" -j "$jobs" "$@"
}

if [[ $install == yes ]]; then
  if [[ $rdma == yes ]]; then tools/install-deps.sh --rdma; else tools/install-deps.sh; fi
fi
mkdir -p build
if [[ $rdma == yes ]]; then
  build release
  say "running the tests on RDMA devices"
  exec ctest --preset rdma
fi
tools/python-env.sh tests/requirements.txt

if [[ $full == yes ]]; then
  presets=(release asan tsan thread-safety)
fi
if [[ ${#presets[@]} -gt 0 ]]; then
  for preset in "${presets[@]}"; do
    build "$preset"
    run "$preset" "${label[@]}"
  done
  exit 0
fi

if [[ $ci == yes ]]; then
  build thread-safety oasiskvd oasisctl oasiskv
fi
build release
run release "${label[@]}"
if [[ ${#label[@]} -eq 0 ]]; then
  for preset in asan tsan; do
    build "$preset" tests_unit
    run "$preset" -L '^unit$'
  done
fi
