#!/usr/bin/env bash
# The figures of tools/bench/gpu and tools/bench/step on this machine's GPU, all in one run (four minutes on an H200).
#
#   tools/bench/gpu_figures.sh [BUILD] [OUTPUT]      default: build/release build/gpu-figures
#
# Everything goes to a file a run in OUTPUT; the sweep as JSON lines, drawn by step/plot.py where matplotlib is.
# A run that fails is named, the others go on, and the exit code is 1.
#
# For a machine without a build, carry these to the same places below one folder, and run the script there:
#   tools/bench/gpu_figures.sh, tools/bench/step/models/, tools/bench/step/plot.py
#   build/release/bin/oasis-bench-gpu
#   Abseil's shared libraries, into build/release/lib, where the script looks for libraries:
#     mkdir -p build/release/lib
#     ldd build/release/bin/oasis-bench-gpu | awk '/libabsl/ { print $3 }' | xargs -I{} cp -L {} build/release/lib/
# The machine has the driver (libcuda) and the CUDA toolkit's libcublasLt; without the toolkit, carry that as well.
set -u
top=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:-$top/build/release} output=${2:-$top/build/gpu-figures}
program=$build/bin/oasis-bench-gpu
[ -x "$program" ] || {
  echo "$program is missing: build with nvcc installed, or name the build folder" >&2
  exit 2
}
export LD_LIBRARY_PATH=$build/lib:/usr/local/cuda/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
mkdir -p "$output"
failed=0

# run NAME OPERATION FLAGS...: the program's output to NAME.txt, what it says meanwhile to NAME.log.
run() {
  local name=$1
  shift
  echo "== $name: oasis-bench-gpu $*"
  if "$program" "$@" >"$output/$name.txt" 2>"$output/$name.log"; then
    tail -n 12 "$output/$name.txt"
  else
    echo "failed: $(tail -n 1 "$output/$name.log")" >&2
    failed=1
  fi
}
step() {
  local name=$1
  shift
  run "$name" step --model="$top/tools/bench/step/models/qwen3-8b.json" --host_bytes=12GiB --steps=8 --warmup=24 "$@"
}

run gather gather
run score score
run score-fp8 score --summaries=fp8 --batch=128
run select select
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
