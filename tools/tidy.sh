#!/usr/bin/env bash
# Runs clang-tidy (.clang-tidy) over the given sources, or over all, or over what changed last; a finding fails it.
# Usage: tools/tidy.sh [FILE.cc...]
#        tools/tidy.sh --changed [SECONDS]
# --changed takes the sources that changed since the newest commit that is a day older than HEAD, newest first. Continuous
# integration has a clone of one branch, in which no other commit says where the work under test began. It starts no file
# after SECONDS (150 when left out), ends what still runs 75 s later, and names the files that were left out.
set -euo pipefail
cd "$(dirname "$0")/.."

# Clang's own compile commands: with GCC's, clang-tidy stops at flags it does not know.
cmake --preset thread-safety > /dev/null
cmake --build --preset thread-safety --target oasiskv_proto_sources

export TIDY_END=0
if [[ ${1:-} == --changed ]]; then
  TIDY_END=$(($(date +%s) + ${2:-150}))
  before=$(git log -1 --format=%H --before="$(($(git log -1 --format=%ct) - 24 * 3600))")
  mapfile -t files < <(git log --format= --name-only ${before:+"$before.."}HEAD -- '*.cc' | awk '!seen[$0]++')
elif [[ $# -gt 0 ]]; then
  files=("$@")
else
  mapfile -t files < <(git ls-files '*.cc')
fi

# Without what this build does not compile: tests/consumer, and where nvcc is missing the CUDA part.
compiled=()
for file in "${files[@]}"; do
  if grep -q "\"file\": \"$PWD/$file\"" build/thread-safety/compile_commands.json; then compiled+=("$file"); fi
done
echo "tidy: ${#compiled[@]} files"
[[ ${#compiled[@]} -gt 0 ]] || exit 0
printf '%s\0' "${compiled[@]}" | xargs -0 -P "$(nproc)" -n 1 bash -o pipefail -c '
  left=$((TIDY_END - $(date +%s)))
  if [[ $TIDY_END -gt 0 && $left -le 0 ]]; then echo "tidy: no time left for $0"; exit 0; fi
  [[ $TIDY_END -gt 0 ]] && left=$((left + 75)) || left=0  # for timeout 0 is no limit
  timeout "$left" clang-tidy -p build/thread-safety --quiet "$0" 2>&1 |
    { grep -v " warnings\? generated\.$" || true; } || status=$?
  if [[ ${status:-0} -eq 124 ]]; then echo "tidy: no time left for $0"; exit 0; fi
  exit "${status:-0}"'
