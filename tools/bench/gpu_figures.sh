#!/usr/bin/env bash
# The figures of tools/bench/gpu and tools/bench/step on this machine's GPU, all in one run (four minutes on an H200).
#
#   tools/bench/gpu_figures.sh [BUILD] [OUTPUT]      default: build/release build/gpu-figures
#
# Everything goes to a file a run in OUTPUT; the sweep as JSON lines, drawn by step/plot.py where matplotlib is.
# A run that fails is named, the others go on, and the exit code is 1.
set -u
top=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:-$top/build/release} output=${2:-$top/build/gpu-figures}
for program in oasis-gpu-bench oasis-step-bench; do
  [ -x "$build/bin/$program" ] || {
    echo "$build/bin/$program is missing: build with nvcc installed, or name the build folder" >&2
    exit 2
  }
done
mkdir -p "$output"
failed=0

# run NAME PROGRAM FLAGS...: the program's output to NAME.txt, what it says meanwhile to NAME.log.
run() {
  local name=$1 program=$2
  shift 2
  echo "== $name: $program $*"
  if "$build/bin/$program" "$@" >"$output/$name.txt" 2>"$output/$name.log"; then
    tail -n 12 "$output/$name.txt"
  else
    echo "failed: $(tail -n 1 "$output/$name.log")" >&2
    failed=1
  fi
}
step() {
  local name=$1
  shift
  run "$name" oasis-step-bench --model="$top/tools/bench/step/models/qwen3-8b.json" --host_bytes=12GiB --steps=8 --warmup=24 "$@"
}

run gather oasis-gpu-bench gather
run score oasis-gpu-bench score
run score-fp8 oasis-gpu-bench score --summaries=fp8 --batch=128
run select oasis-gpu-bench select
step sweep --ratios=0.05,1.0,0.01,0.02,0.1,0.2 --json
step churn-5 --churn=5 --predict_processors=32
step churn-5-shared --churn=5 --sides=sparse
step apart --ratios=0.05,0.01 --sides=sparse --predict_processors=32
step spare --ratios=1.0 --spares=0,16,32 --sides=sparse
step small --batches=4,8,16,24
if [ $failed = 0 ] && python3 -c 'import matplotlib' 2>/dev/null; then
  python3 "$top/tools/bench/step/plot.py" "$output/sweep.txt" "$output/sweep.png" || failed=1
fi
echo "in $output"
exit $failed
