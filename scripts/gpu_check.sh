#!/usr/bin/env bash
# Builds what runs on a GPU, runs every test of it, collectives and training by two processes that share it, kernels
# under compute-sanitizer, kernels beside their limits (benchmarks/cuda_kernels.cpp), steps of gpt2-124m, and where python3
# has torch its fused AdamW and its steps; prints one table. Needs the CUDA toolkit, NCCL and cuDNN beside it, CMake,
# ninja, a compiler, no network. What the toolkit lacks is looked for among python3's packages, as NVIDIA's pip wheels
# lay it out (nvidia/cu13, nvidia/nccl, nvidia/cudnn).
#   scripts/gpu_check.sh [--libraries FILE] [--json FILE] [--seconds N] [--only PARTS] [-- CMAKE_ARGUMENT...]
#   --libraries FILE   what scripts/gpu_libraries.sh packed, where the packages are not installed
#   --json FILE        the table (build/gpu-check.json by default), written anew with each row
#   --seconds N        ends within so many (540 by default); what did not get its turn is a failure
#   --only PARTS       some of tests,ranks,benchmarks,training,sanitizers, of which only what they need is built
# Where a call may not take long enough for all parts, three that keep build/gpu between them, what tells most first:
#   scripts/gpu_check.sh --only tests,benchmarks --json build/gpu-check-1.json
#   scripts/gpu_check.sh --only training --json build/gpu-check-2.json
#   scripts/gpu_check.sh --only sanitizers,ranks --json build/gpu-check-3.json
# Packs the logs beside the table, in FILE without .json and with -logs.tgz.
# Exits 0 where nothing failed, 1 where something did, or where there is no GPU that CUDA can use. Shows what failed.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

build=build/gpu libraries='' json=build/gpu-check.json seconds=540 all_parts=tests,ranks,benchmarks,training,sanitizers
only=$all_parts
while [ $# -gt 0 ]; do
  case $1 in
    --libraries | --json | --seconds | --only)
      [ $# -gt 1 ] || refuse "$1 needs a value"
      case $1 in
        --libraries | --json) declare "${1#--}=$(path_of "$2")" ;;
        *) declare "${1#--}=$2" ;;
      esac
      shift 2 ;;
    --) shift; break ;;
    -h | --help) usage; exit 0 ;;
    *) refuse "unknown argument '$1'" ;;
  esac
done
is_count "$seconds" || refuse "--seconds is '$seconds'; a whole number from 1 is needed"
[ -z "$libraries" ] || [ -f "$libraries" ] || refuse "there is no file '$libraries'"
IFS=, read -ra parts <<<"$only"
for part in "${parts[@]}"; do
  [[ ,$all_parts, = *,"$part",* ]] || refuse "--only has '$part'; there are ${all_parts//,/, }"
done
[ ${#parts[@]} -gt 0 ] || refuse "--only names nothing"
mkdir -p "$build/logs" "$(dirname "$json")"
started=$SECONDS
left() { echo $((seconds - (SECONDS - started))); }

# One row a check: name, result, seconds, note, and where there is one a ratio and the least that is asked of it. The
# result is passed or failed, measured where nothing is asked, skipped where something else is missing.
rows=() failed=0 skipped=0 failed_logs=() gpu=''
row() {
  local note=${4//|//}  # fields are parted by it
  rows+=("$1|$2|$3|$note|${5:-}|${6:-}")
  case $2 in failed) failed=1 ;; skipped) skipped=$((skipped + 1)) ;; esac
  printf '%-34s %-8s %5s s  %-16s %s\n' "$1" "$2" "$3" "${5:+$5${6:+ of $6}}" "$note"
  write_json unfinished
}
log_of() { echo "$build/logs/${1//[^a-z0-9_]/_}.log"; }
# check NAME LIMIT NOTE_COMMAND COMMAND...: runs it within LIMIT and the time that is left; its output goes to a log. It
# did not take place where the note, which is made of the log and the exit status, begins with "skipped: ".
check() {
  local name=$1 limit=$2 note=$3 begin=$SECONDS status=0 log
  log=$(log_of "$name")
  : >"$log"
  shift 3
  local time_left; time_left=$(left)
  if [ "$time_left" -le 0 ]; then row "$name" failed 0 "no time was left"; return 1; fi
  # A process that a GPU holds up may be deaf to the first signal.
  timeout --kill-after=5 $((limit < time_left ? limit : time_left)) "$@" >"$log" 2>&1 || status=$?
  local words; words=$($note "$log" $status)
  case $words in 'skipped: '*) row "$name" skipped $((SECONDS - begin)) "${words#skipped: }"; return 0 ;; esac
  if [ $status -eq 0 ]; then row "$name" passed $((SECONDS - begin)) "$words"; return 0; fi
  case $status in 124 | 137) words="over its time; $words" ;; esac
  failed_logs+=("$log")
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
# Not a file's name, such as error.h. CMake says where, and in the lines behind what.
first_error() {
  grep -m 1 -E 'error:|[Ee]rror [0-9C]|CMake Error at|CMake Error:|^FAILED|undefined reference' -A 6 "$1" | awk '
    NR == 1 { words = $0; if (!/^CMake Error at/) exit; next }
    /^Call Stack/ { exit }
    NF == 0 { if (told) exit; next }
    { $1 = $1; words = words " " $0; told = 1 }
    END { print words }' | cut -c1-300 || true
}
last_line() { tail -n 1 "$1" | cut -c1-100; }
# Tests that all skip are none that took place; what dies behind them did.
test_counts() {
  local passed skipped bad words
  passed=$(grep -c '^\[       OK \]' "$1" || true) skipped=$(grep -c '^\[  SKIPPED \].*(' "$1" || true)
  bad=$(grep -c '^\[  FAILED  \].*(' "$1" || true)
  words="$passed passed, $bad failed, $skipped skipped"
  if [ "$2" -ne 0 ]; then
    [ "$bad" -gt 0 ] || words="exit $2 without a failed test; $words"
  elif [ "$passed" -eq 0 ] && grep -q '^\[  PASSED  \] 0 tests' "$1"; then
    words="skipped: $words: $(grep -m 1 -A 1 ': Skipped$' "$1" | tail -n 1)"
  fi
  echo "$words"
}
sanitizer_words() {
  if grep -q 'Device not supported' "$1"; then
    echo 'skipped: compute-sanitizer does not support this device'
  else
    grep -m 1 -E '(ERROR|RACECHECK) SUMMARY' "$1" | sed 's/^=* *//' || true
  fi
}

# write_json RESULT: the table so far. ASCII, since a note may be cut within a letter.
write_json() {
  local LC_ALL=C separator='' line name result took note ratio required
  {
    printf '{"gpu": "%s", "result": "%s", "seconds": %d, "checks": [' "$gpu" "$1" $((SECONDS - started))
    for line in "${rows[@]}"; do
      IFS='|' read -r name result took note ratio required <<<"$line"
      note=${note//[^[:print:]]/?}
      note=${note//\\/\\\\}
      printf '%s\n  {"name": "%s", "result": "%s", "seconds": %s, "ratio": %s, "required": %s, "note": "%s"}' \
        "$separator" "$name" "$result" "$took" "${ratio:-null}" "${required:-null}" "${note//\"/\\\"}"
      separator=,
    done
    printf '\n]}\n'
  } >"$json"
}
# What GoogleTest found, which lies before its list of names, or the end.
show_failure() {
  echo "--- $1"
  if grep -q ': Failure$' "$1"; then grep -m 4 -A 8 ': Failure$' "$1"; else tail -n 20 "$1"; fi | cut -c1-300
}
finish() {
  trap - EXIT
  local log result=passed more=''
  [ $failed -eq 0 ] || result=failed
  [ $skipped -eq 0 ] || more=", $skipped skipped"
  for log in "${failed_logs[@]}"; do show_failure "$log"; done
  write_json $result
  tar --create --gzip --file "${json%.json}-logs.tgz" --directory "$build" logs || true
  echo "$result in $((SECONDS - started)) s on ${gpu:-no GPU}$more; written to $json"
  exit $failed
}
trap 'row gpu_check failed 0 "it ended early"; finish' EXIT

# Warnings are no errors here: the compiler is whichever the machine has.
arguments=(-G Ninja -DCMAKE_BUILD_TYPE=Release -DTESSERA_WITH_CUDA=ON -DTESSERA_WITH_MPI=OFF -DTESSERA_EXAMPLES=OFF)
# Folders that CMake looks in, and those that programs load from, in this order. What was compiled with is loaded, too: a
# machine may have other versions of these, and a cuDNN that is older is refused.
prefixes=() before=() behind=()
if [ -n "$libraries" ]; then
  mkdir -p "$build/libraries"
  check unpack 60 last_line tar --extract --file "$libraries" --directory "$build/libraries" || finish
  prefixes+=("$PWD/$build/libraries/usr")
  before+=("$PWD/$build"/libraries/usr/lib/*-linux-gnu)
fi
# PyTorch brings along NCCL and cuDNN, which a toolkit alone has not, and may bring what else is missing of one.
mapfile -t wheels < <(python3 -c 'import nvidia
print(*nvidia.__path__, sep="\n")' 2>/dev/null || true)
for wheel in "${wheels[@]}"; do
  for part in nccl cudnn; do
    if [ -d "$wheel/$part" ]; then prefixes+=("$wheel/$part"); before+=("$wheel/$part/lib"); fi
  done
done
# The toolkit that CMake would take: as an argument says, or the environment, or the path.
nvcc=''
for argument in "$@"; do
  case $argument in
    -DCMAKE_CUDA_COMPILER=* | -DCMAKE_CUDA_COMPILER:*=*) nvcc=${argument#*=} ;;
    -DCUDAToolkit_ROOT=* | -DCUDAToolkit_ROOT:*=*) nvcc=${argument#*=}/bin/nvcc ;;
  esac
done
for found in "${CUDACXX:-}" "${CUDAToolkit_ROOT:+$CUDAToolkit_ROOT/bin/nvcc}" "${CUDA_HOME:+$CUDA_HOME/bin/nvcc}" \
  "${CUDA_PATH:+$CUDA_PATH/bin/nvcc}" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc; do
  if [ -z "$nvcc" ] && [ -x "$found" ]; then nvcc=$found; fi
done
nvcc=$(command -v "$nvcc" || echo "$nvcc")  # a bare name is one of the path's
version=''
if [ -n "$nvcc" ]; then
  # Before the wheels: of what both have, the toolkit's goes with the compiler.
  toolkit=$(realpath -m "$(dirname "$(realpath -m "$nvcc")")/..")
  prefixes+=("$toolkit")
  for folder in lib64 lib; do
    if [ -d "$toolkit/$folder" ] && [ "$toolkit" != /usr ]; then behind+=("$toolkit/$folder"); break; fi
  done
  version=$("$nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9]*\)\..*/\1/p' || true)
fi
for wheel in "${wheels[@]}"; do
  for folder in "$wheel"/cu${version:-1[3-9]}; do  # CUDA 13 is the least
    if [ -d "$folder" ]; then prefixes+=("$folder"); behind+=("$folder/lib"); fi
  done
done
join() { local IFS=$1; shift; echo "$*"; }
arguments+=(-DCMAKE_PREFIX_PATH="$(join ';' "${prefixes[@]}")")
library_path=${LD_LIBRARY_PATH:-}  # PyTorch's programs keep to this
IFS=: read -ra given <<<"$library_path"
LD_LIBRARY_PATH=$(join : "${before[@]}" "${given[@]}" "${behind[@]}")
export LD_LIBRARY_PATH
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1 || true)
if [ -n "$gpu" ] || [ -e /dev/nvidiactl ]; then arguments+=(-DCMAKE_CUDA_ARCHITECTURES=native); fi

check configure 120 first_error cmake -S . -B "$build" "${arguments[@]}" "$@" || finish
# without PART: why CMake went on without it.
without() { sed -n "s/^-- Without $1: //p" "$(log_of configure)" | head -n 1; }
mapfile -t tests < <(ctest --test-dir "$build" -N -L gpu | sed -n 's/^ *Test *#[0-9]*: //p')
[ ${#tests[@]} -gt 0 ] || { row tests failed 0 "no test has the label gpu"; finish; }
has_test() { printf '%s\n' "${tests[@]}" | grep -qx "$1"; }
targets=(tessera_cli)
for part in "${parts[@]}"; do
  case $part in
    tests) targets+=("${tests[@]}") ;;
    ranks) if has_test comm_nccl_test; then targets+=(comm_nccl_test); fi ;;
    benchmarks) targets+=(bench_cuda_kernels) ;;
    sanitizers) targets+=(kernels_cuda_test) ;;
  esac
done
# What does not compile keeps nothing else from running.
check build 420 first_error cmake --build "$build" --parallel "$(nproc)" --target "${targets[@]}" -- -k 0 || true
program_of() { find "$build/tests" -type f -name "$1" -perm -u+x; }
tool=$build/bin/tessera info=$(log_of 'tessera info')
[ -x "$tool" ] || { row 'tessera info' failed 0 "the tool was not built"; finish; }
check 'tessera info' 30 nothing "$tool" info || finish
cat "$info"
# CUDA has the last word: a program may not be able to use the GPU that nvidia-smi lists.
if ! grep -q '^GPU 0 ' "$info"; then
  row GPU failed 0 "$(sed -n 's/^GPUs  *none: //p' "$info"), so no test can run"
  finish
fi
[ -n "$gpu" ] || gpu=$(sed -n 's/^GPU 0  *\([^,]*\),.*/\1/p' "$info")

part_tests() {
  local name program
  for name in "${tests[@]}"; do
    program=$(program_of "$name")
    if [ -n "$program" ]; then
      # The table of all ops, on both processors: what of it needs no GPU is tested without one.
      case $name in
        kernels_cuda_test) check "$name" 240 test_counts "$program" '--gtest_filter=-CudaTable.*' || true ;;
        *) check "$name" 120 test_counts "$program" || true ;;
      esac
    else
      row "$name" failed 0 "it was not built"
    fi
  done
  if grep -q '^built with .*cuDNN none$' "$info"; then row cuDNN failed 0 "this build has none: $(without CUDNN)"; fi
  if [ -n "$(without NVTX)" ]; then row NVTX skipped 0 "this build has none: $(without NVTX)"; fi
}

# Ranks that are processes share a GPU.
part_ranks() {
  local contract
  contract=$(program_of comm_nccl_test)
  if [ -n "$contract" ]; then
    check 'NCCL contract, two processes' 240 test_counts tests/comm/launch.sh 2 "$contract" '--gtest_filter=*Communicator*' || true
    check 'training, two processes' 100 last_line tests/cli/gpu_ranks.sh "$tool" tests/comm/launch.sh || true
  elif ! has_test comm_nccl_test; then
    row NCCL failed 0 "this build has none: $(without NCCL)"
  fi
}

# Asked once: importing torch takes seconds.
torch=''
torch_sees_gpu() {
  if [ -z "$torch" ]; then
    torch=false
    LD_LIBRARY_PATH=$library_path python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' \
      2>"$build/logs/torch.log" && torch=true
  fi
  $torch
}

# Kernels beside their limits, a row each, and AdamW by PyTorch, fused, on the same tensors: how many times as long it takes.
part_benchmarks() {
  local results=$build/logs/cuda_kernels.json peer_results=$build/logs/torch_adamw.json
  : >"$results"
  if [ -x "$build/bin/bench_cuda_kernels" ]; then
    check benchmarks 90 nothing "$build/bin/bench_cuda_kernels" --benchmark_out="$results" --benchmark_out_format=json || true
  else
    row benchmarks failed 0 "they were not built"
  fi
  add_rows awk -f scripts/benchmark_rows.awk "$results"
  : >"$peer_results"
  if torch_sees_gpu; then
    check "PyTorch's AdamW" 60 nothing env LD_LIBRARY_PATH="$library_path" python3 benchmarks/peers/torch_adamw.py \
      --device cuda --numel $((1 << 26)) --json "$peer_results" || true
    add_rows awk -f scripts/adamw_beside.awk "$results" "$peer_results"
  else
    row "AdamW beside PyTorch" skipped 0 "python3 has no torch that sees a GPU (see $build/logs/torch.log)"
  fi
}

tokens_per_second() { sed -n 's/.*"tokens_per_second": \([0-9]*\).*/\1/p' "$1" | head -n 1; }

# Steps of gpt2-124m, and the same by PyTorch, not compiled.
part_training() {
  local trained=false ours theirs='' peer_results=$build/logs/torch_gpt2_step.json
  check 'training, gpt2-124m' 120 last_line tests/cli/gpu_train.sh "$tool" && trained=true
  add_rows sed -n 's/^row: //p' "$(log_of 'training, gpt2-124m')"
  check 'training, offload' 210 last_line tests/cli/gpu_offload.sh "$tool" || true
  add_rows sed -n 's/^row: //p' "$(log_of 'training, offload')"
  if $trained && torch_sees_gpu; then
    ours=$(sed -n '$s/^\([0-9][0-9]*\) tokens.*/\1/p' "$(log_of 'training, gpt2-124m')")
    rm -f "$peer_results"
    check "PyTorch's training" 60 nothing env LD_LIBRARY_PATH="$library_path" python3 benchmarks/peers/torch_gpt2_step.py \
      --device cuda --dtype bf16 --sequences 8 --length 1024 --steps 20 --json "$peer_results" && theirs=$(tokens_per_second "$peer_results") || true
    if [ -n "$ours" ] && [ "${theirs:-0}" -gt 0 ]; then
      row 'training beside PyTorch' measured 0 "$ours and $theirs tokens/s" "$(awk "BEGIN {printf \"%.3f\", $ours / $theirs}")"
    fi
  fi
}

# compute-sanitizer on the path, or in the toolkit that was built with.
part_sanitizers() {
  local nvcc toolkit sanitizer='' found program once
  nvcc=$(sed -n 's/^CMAKE_CUDA_COMPILER:[^=]*=//p' "$build/CMakeCache.txt" | head -n 1)
  toolkit=$(realpath "$(dirname "${nvcc:-/usr/local/cuda/bin/nvcc}")/..")
  for found in "$(command -v compute-sanitizer || true)" "$toolkit"/{bin,compute-sanitizer}/compute-sanitizer; do
    if [ -x "$found" ]; then sanitizer=$found; break; fi
  done
  program=$(program_of kernels_cuda_test)
  if [ -z "$sanitizer" ]; then
    row compute-sanitizer skipped 0 "it is not on the path, nor in $toolkit"
  elif [ -n "$program" ]; then
    # Calls of CUDA that fail inside the libraries are theirs to handle, and so are hazards in their kernels. One op in
    # three at either place, once: instrumented, all of them take minutes, and that they repeat themselves was seen above.
    once='--gtest_filter=*AgreeWithTheCpu*:CudaErrors.*'
    local -x TESSERA_SAMPLE=3
    check 'kernels under memcheck' 200 sanitizer_words \
      "$sanitizer" --tool memcheck --report-api-errors no --error-exitcode 1 "$program" "$once" || true
    check 'kernels under racecheck' 200 sanitizer_words \
      "$sanitizer" --tool racecheck --kernel-name kns=tessera --error-exitcode 1 "$program" "$once" || true
  fi
}

for part in "${parts[@]}"; do "part_$part"; done
finish
