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
  --rdma         only the tests on RDMA devices, in virtual machines (installs QEMU; some 4 minutes after the build)
  --ci           as without options, Clang's lock analysis of the product (compiled, not run), clang-tidy on the sources
                 that changed last, and the tests on RDMA devices where a virtual machine can be booted; else what
                 they need is named
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

# The tests on RDMA devices, one virtual machine at a time. One that cannot be booted is told before any test is run, so
# that a test which fails is a failure; in-rdma-guest says what is missing.
left_out=''
run_rdma() {
  say "booting a virtual machine with RDMA devices"
  local status=0
  tests/fabric/in-rdma-guest --timeout 120 -- true || status=$?
  case $status in
    0) ;;
    77) left_out="they need what the line above names" ;;
    124 | 125) left_out="they need a machine on which QEMU boots Debian's kernel" ;;
    *) fail "in-rdma-guest ended with $status" ;;
  esac
  if [[ -n $left_out ]]; then
    say "the tests on RDMA devices are left out: $left_out"
    return
  fi
  build release
  say "running the tests on RDMA devices"
  ctest --preset rdma
}

if [[ $install == yes ]]; then
  if [[ $rdma == yes ]]; then
    tools/install-deps.sh --rdma
  else
    tools/install-deps.sh
    if [[ $ci == yes ]]; then tools/install-deps.sh --rdma || say "the packages of the RDMA tests cannot be installed"; fi
  fi
fi
mkdir -p build
if [[ $rdma == yes ]]; then
  run_rdma
  [[ -z $left_out ]] || exit 77
  exit 0
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
  say "running clang-tidy on the sources that changed last"
  tools/tidy.sh --changed || fail "clang-tidy has findings, see above; to repeat one file: tools/tidy.sh FILE.cc"
fi
build release
run release "${label[@]}"
if [[ $ci == yes ]]; then run_rdma; fi
if [[ ${#label[@]} -eq 0 ]]; then
  for preset in asan tsan; do
    build "$preset" tests_unit
    run "$preset" -L '^unit$'
  done
fi
