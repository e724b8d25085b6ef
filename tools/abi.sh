#!/usr/bin/env bash
# Compares the C interface of a built liboasiskv with tests/checks/liboasiskv.abi: its functions, their parameters, and
# every field of the structures that they take. What it cannot see: values of enums (the functions take int), and the C++
# interface, whose types hold those of Abseil and of the standard library, which differ between releases of Debian.
# Usage: tools/abi.sh --check|--renew [LIBRARY]    (LIBRARY: build/release/lib/liboasiskv.so)
# Exit status 77 of --check: left out, the last line says what is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

committed=tests/checks/liboasiskv.abi
library=${2:-build/release/lib/liboasiskv.so}
fail() { echo "abi: $*" >&2; exit 1; }
leave_out() { echo "abi: skipped, $*"; exit 77; }

case "${1:-}" in
  --check | --renew) ;;
  *) fail "usage: tools/abi.sh --check|--renew [LIBRARY]" ;;
esac
command -v abidw > /dev/null && command -v abidiff > /dev/null ||
  leave_out "needs abidw and abidiff (Debian's abigail-tools; tools/install-deps.sh installs them)"
[[ -f $library ]] || fail "no $library; build it with: cmake --build --preset release --target oasiskv"
# Compilers describe types differently, and client/c_api/CMakeLists.txt has GCC alone describe those of the C interface.
! readelf --string-dump=.comment "$library" | grep 'clang version' > /dev/null || leave_out "needs a library built with GCC"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf '[suppress_%s]\nsymbol_name_not_regexp = ^oasiskv_\ndrop = yes\n\n' function variable > "$work/c_only.ini"
# Nothing that depends on the machine, on the place of a line or on what is behind the public headers.
abidw --suppr "$work/c_only.ini" --headers-dir client/include --headers-dir common/include --drop-private-types \
  --exported-interfaces-only --drop-undefined-syms --no-show-locs --no-corpus-path --no-comp-dir-path --no-elf-needed \
  --no-architecture --no-parameter-names "$library" | sed "s|path='$PWD/|path='|" > "$work/built.abi"
grep -q '<parameter ' "$work/built.abi" ||
  fail "$library has no debug information of client/c_api (stripped?), so that types cannot be compared"

if [[ $1 == --renew ]]; then
  cp "$work/built.abi" "$committed"
  echo "abi: wrote $committed"
  exit 0
fi
[[ -f $committed ]] || fail "no $committed; write it with: tools/abi.sh --renew $library"
abidiff "$committed" "$work/built.abi" ||
  fail "the C interface of $library is not that of $committed, see above. Where that is meant, say it in the commit and" \
    "renew the file with: tools/abi.sh --renew $library"
echo "abi: same as $committed"
