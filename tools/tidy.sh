#!/usr/bin/env bash
# Runs clang-tidy (.clang-tidy) over the given sources, or over all. Takes minutes: it is no part of tools/test.sh.
# Usage: tools/tidy.sh [FILE.cc...]
set -euo pipefail
cd "$(dirname "$0")/.."

# Clang's own compile commands: with GCC's, clang-tidy stops at flags it does not know.
cmake --preset thread-safety > /dev/null
# The generated proto headers must be there.
cmake --build --preset thread-safety --target oasiskv_proto
if [[ $# -gt 0 ]]; then
  files=("$@")
else
  mapfile -t files < <(git ls-files '*.cc' ':!tests/consumer')
fi
printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -n 1 clang-tidy -p build/thread-safety --quiet
