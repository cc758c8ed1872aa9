#!/usr/bin/env bash
# Builds what runs on a GPU, runs every test of it, collectives and training by two processes that share it, kernels
# under compute-sanitizer, kernels beside their limits (benchmarks/cuda_kernels.cpp), PyTorch's fused AdamW where python3
# has torch, and steps of gpt2-124m; prints one table. Needs the CUDA toolkit (also as laid out by NVIDIA's pip wheels,
# see CONTRIBUTING.md), NCCL and cuDNN beside it or among python3's packages, CMake, ninja, a compiler, no network.
#   scripts/gpu_check.sh [--libraries FILE] [--json FILE] [--seconds N] [-- CMAKE_ARGUMENT...]
#   --libraries FILE   what scripts/gpu_libraries.sh packed, where the packages are not installed
#   --json FILE        the table (build/gpu-check.json by default)
#   --seconds N        ends within so many (540 by default); what did not get its turn is a failure
# Exits 0 where all passed, 1 where something failed or there is no GPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build=build/gpu libraries='' json=build/gpu-check.json seconds=540
while [ $# -gt 0 ]; do
  case $1 in
    --libraries | --json | --seconds)
      [ $# -gt 1 ] || { echo "gpu_check: $1 needs a value" >&2; exit 2; }
      declare "${1#--}=$2"
      shift 2 ;;
    --) shift; break ;;
    --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) echo "gpu_check: unknown argument '$1'; see scripts/gpu_check.sh --help" >&2; exit 2 ;;
  esac
done
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { echo "gpu_check: --seconds is '$seconds'; a whole number from 1 is needed" >&2; exit 2; }
[ -z "$libraries" ] || [ -f "$libraries" ] || { echo "gpu_check: there is no file '$libraries'" >&2; exit 2; }
mkdir -p "$build/logs" "$(dirname "$json")"
started=$SECONDS
left() { echo $((seconds - (SECONDS - started))); }

# One row a check: name, result, seconds, note, and where there is one a ratio and the least that is asked of it. The
# result is passed or failed, measured where nothing is asked, skipped where something else is missing.
rows=() failed=0
row() {
  rows+=("$1|$2|$3|$4|${5:-}|${6:-}")
  [ "$2" != failed ] || failed=1
  printf '%-34s %-8s %5s s  %-16s %s\n' "$1" "$2" "$3" "${5:+$5${6:+ of $6}}" "$4"
}
# check NAME LIMIT NOTE_COMMAND COMMAND...: runs it within LIMIT and the time that is left; its output goes to a log.
check() {
  local name=$1 limit=$2 note=$3 begin=$SECONDS status=0 log
  log=$build/logs/${name//[^a-z0-9_]/_}.log
  shift 3
  local time_left; time_left=$(left)
  if [ "$time_left" -le 0 ]; then row "$name" failed 0 "no time was left"; return 1; fi
  timeout $((limit < time_left ? limit : time_left)) "$@" >"$log" 2>&1 || status=$?
  local words; words=$($note "$log")
  if [ $status -eq 0 ]; then row "$name" passed $((SECONDS - begin)) "$words"; return 0; fi
  [ $status -eq 124 ] && words="over its time; $words"
  row "$name" failed $((SECONDS - begin)) "$words (see $log)"
  return 1
}
# Rows that a command prints as name|result|ratio|required|note.
add_rows() {
  local name result ratio required note
  while IFS='|' read -r name result ratio required note; do
    row "$name" "$result" 0 "$note" "$ratio" "$required"
  done < <("$@")
}
nothing() { :; }
last_error() { grep -m 1 -E 'error|Error' "$1" | cut -c1-100 || true; }
last_line() { tail -n 1 "$1" | cut -c1-100; }
test_counts() {
  local passed skipped bad
  passed=$(grep -c '^\[       OK \]' "$1" || true) skipped=$(grep -c '^\[  SKIPPED \].*(' "$1" || true)
  bad=$(grep -c '^\[  FAILED  \].*(' "$1" || true)
  echo "$passed passed, $bad failed, $skipped skipped"
}
sanitizer_words() { grep -m 1 -E '(ERROR|RACECHECK) SUMMARY' "$1" | sed 's/^=* *//' || true; }

finish() {
  {
    printf '{"gpu": "%s", "seconds": %d, "checks": [' "$gpu" $((SECONDS - started))
    local separator='' name result took note ratio required
    for line in "${rows[@]}"; do
      IFS='|' read -r name result took note ratio required <<<"$line"
      printf '%s\n  {"name": "%s", "result": "%s", "seconds": %s, "ratio": %s, "required": %s, "note": "%s"}' \
        "$separator" "$name" "$result" "$took" "${ratio:-null}" "${required:-null}" "$(sed 's/[\\"]/\\&/g' <<<"$note")"
      separator=,
    done
    printf '\n]}\n'
  } >"$json"
  echo "$([ $failed -eq 0 ] && echo passed || echo failed) in $((SECONDS - started)) s on ${gpu:-no GPU}; written to $json"
  exit $failed
}

# Warnings are no errors here: the compiler is whichever the machine has.
arguments=(-G Ninja -DCMAKE_BUILD_TYPE=Release -DTESSERA_WITH_CUDA=ON -DTESSERA_WITH_MPI=OFF -DTESSERA_EXAMPLES=OFF)
# PyTorch brings NCCL and cuDNN along, which a toolkit alone has not.
prefixes=$(python3 -c 'import nvidia
print(*(f"{root}/{part}" for root in nvidia.__path__ for part in ("nccl", "cudnn")), sep=";")' 2>/dev/null || true)
if [ -n "$libraries" ]; then
  mkdir -p "$build/libraries"
  tar --extract --file "$libraries" --directory "$build/libraries"
  prefixes="$PWD/$build/libraries/usr;$prefixes"
  for folder in "$PWD/$build"/libraries/usr/lib/*-linux-gnu; do
    export LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  done
fi
arguments+=(-DCMAKE_PREFIX_PATH="$prefixes")
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1 || true)
if [ -n "$gpu" ]; then arguments+=(-DCMAKE_CUDA_ARCHITECTURES=native); fi

check configure 120 last_error cmake -S . -B "$build" "${arguments[@]}" "$@" || finish
mapfile -t tests < <(ctest --test-dir "$build" -N -L gpu | sed -n 's/^ *Test *#[0-9]*: //p')
[ ${#tests[@]} -gt 0 ] || { row tests failed 0 "no test has the label gpu"; finish; }
check build 420 last_error cmake --build "$build" --parallel "$(nproc)" \
  --target tessera_cli bench_cuda_kernels "${tests[@]}" || finish
check 'tessera info' 20 nothing "$build/bin/tessera" info || true
cat "$build/logs/tessera_info.log"
if [ -z "$gpu" ]; then row GPU failed 0 "none is here, so no test can run"; finish; fi

for name in "${tests[@]}"; do
  program=$(find "$build/tests" -type f -name "$name" -perm -u+x)
  check "$name" 120 test_counts "$program" || true
done
# Ranks that are processes share a GPU.
contract=$(find "$build/tests" -type f -name comm_nccl_test -perm -u+x)
if [ -n "$contract" ]; then
  check 'NCCL contract, two processes' 150 test_counts tests/comm/launch.sh 2 "$contract" '--gtest_filter=*Communicator*' || true
  check 'training, two processes' 100 last_line tests/cli/gpu_ranks.sh "$build/bin/tessera" tests/comm/launch.sh || true
else
  row NCCL failed 0 "this build has none"
fi
if grep -q '^built with .*cuDNN none$' "$build/logs/tessera_info.log"; then row cuDNN failed 0 "this build has none"; fi

# Kernels beside their limits: a row each.
results=$build/logs/cuda_kernels.json
: >"$results"
check benchmarks 90 nothing "$build/bin/bench_cuda_kernels" --benchmark_out="$results" --benchmark_out_format=json || true
add_rows awk -f scripts/benchmark_rows.awk "$results"
# The same tensors by PyTorch's fused AdamW: how many times as long it takes.
peer_results=$build/logs/torch_adamw.json
: >"$peer_results"
if python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>"$build/logs/torch.log"; then
  check "PyTorch's AdamW" 60 nothing python3 benchmarks/peers/torch_adamw.py --device cuda --numel $((1 << 26)) \
    --json "$peer_results" || true
  add_rows awk -f scripts/adamw_beside.awk "$results" "$peer_results"
else
  row "AdamW beside PyTorch" skipped 0 "python3 has no torch that sees a GPU (see $build/logs/torch.log)"
fi
check 'training, gpt2-124m' 90 last_line tests/cli/gpu_train.sh "$build/bin/tessera" || true
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
if [ -x "$sanitizer" ]; then
  program=$(find "$build/tests" -type f -name kernels_cuda_test -perm -u+x)
  # Calls of CUDA that fail inside the libraries are theirs to handle, and so are hazards in their kernels. Each op runs
  # once at either place: that it repeats itself was seen above.
  once='--gtest_filter=*AgreeWithTheCpu*:CudaErrors.*'
  check 'kernels under memcheck' 200 sanitizer_words \
    "$sanitizer" --tool memcheck --report-api-errors no --error-exitcode 1 "$program" "$once" || true
  check 'kernels under racecheck' 200 sanitizer_words \
    "$sanitizer" --tool racecheck --kernel-name kns=tessera --error-exitcode 1 "$program" "$once" || true
else
  row compute-sanitizer failed 0 "it is not on the path, nor in /usr/local/cuda"
fi
finish
