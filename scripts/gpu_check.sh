#!/usr/bin/env bash
# What a GPU shows, in one call and one table: every test, steps of gpt2-124m, gpt2-1558m and a Llama of 7B with their
# share of the GPU's peak and their memory beside the plan, kernels beside their limits (benchmarks/cuda_kernels.cpp),
# kernels under compute-sanitizer, collectives and training by two processes that share the GPU; and where python3 has torch,
# its steps of the same models, eager and compiled, and its fused AdamW. Needs the CUDA toolkit, NCCL and cuDNN beside it,
# CMake, ninja, a compiler, no network. What the toolkit lacks is looked for among python3's packages, as NVIDIA's pip wheels
# lay it out (nvidia/cu13, or nvidia/cublas and the like of CUDA 12; nvidia/nccl, nvidia/cudnn).
#   scripts/gpu_check.sh [--libraries FILE] [--json FILE] [--seconds N] [--only PARTS] [-- CMAKE_ARGUMENT...]
#   --libraries FILE   what scripts/gpu_libraries.sh packed, where the packages are not installed
#   --json FILE        the table (build/gpu-check.json by default), written anew with each row
#   --seconds N        ends within so many (540 by default); what did not get its turn is a failure, PyTorch's apart
#   --only PARTS       some of tests,ranks,sanitizers,training,benchmarks,llama,large,offload (all but offload by default),
#                      of which only what they need is built. They run in this order, what tells most first, and one that
#                      fails keeps none from running.
# Where there is time for more calls, these keep build/gpu between them:
#   scripts/gpu_check.sh --only tests,benchmarks --json build/gpu-check-1.json
#   scripts/gpu_check.sh --only training,llama,large --json build/gpu-check-2.json
#   scripts/gpu_check.sh --only sanitizers,ranks,offload --json build/gpu-check-3.json
# Packs the logs beside the table, in FILE without .json and with -logs.tgz.
# Exits 0 where nothing failed, 1 where something did, or where there is no GPU that CUDA can use. Shows what failed. A speed
# below what is expected is no failure, since nobody has measured one yet; the last line counts them.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

build=build/gpu libraries='' json=build/gpu-check.json seconds=540
only=tests,ranks,sanitizers,training,benchmarks,llama,large
all_parts=$only,offload
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

source scripts/gpu_table.sh

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
  case $version in
    12) folders=("$wheel"/{cuda_runtime,cublas,nvtx}) ;;  # since 13 all that has a version lies in one folder
    *) folders=("$wheel"/cu${version:-1[3-9]}) ;;
  esac
  for folder in "${folders[@]}"; do
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
    beside "PyTorch's AdamW" 60 env LD_LIBRARY_PATH="$library_path" python3 benchmarks/peers/torch_adamw.py \
      --device cuda --numel $((1 << 26)) --json "$peer_results" || true
    [ -s "$peer_results" ] || return 0
    add_rows awk -f scripts/adamw_beside.awk "$results" "$peer_results"
  else
    row "AdamW beside PyTorch" skipped 0 "python3 has no torch that sees a GPU (see $build/logs/torch.log)"
  fi
}

# Steps of a model, and the same by PyTorch, eager and compiled.
# model PRESET LIMIT PEER ARGUMENTS COMPILED: within LIMIT seconds each; PEER is a script of benchmarks/peers, COMPILED its
# way to compile.
gpt2_batch='--dtype bf16 --sequences 8 --length 1024 --steps 20'
model() {
  local preset=$1 limit=$2 peer=$3 arguments=$4 name mode theirs log rate='' utilisation='' bytes='' layers='' what=''
  name="training, $preset"
  check "$name" "$limit" last_words tests/cli/gpu_train.sh "$tool" "$preset" || true
  log=$(log_of "$name")
  add_rows sed -n 's/^row: //p' "$log"
  eval "$(sed -n 's/^figures: \(.*\)$/\1/p' "$log" | tail -n 1)"
  if [ -z "$rate" ]; then row "$preset beside PyTorch" skipped 0 "there is no figure of Tessera's"; return; fi
  if ! torch_sees_gpu; then
    row "$preset beside PyTorch" skipped 0 "python3 has no torch that sees a GPU (see $build/logs/torch.log)"
    return
  fi
  for mode in eager "$5"; do
    theirs=$build/logs/torch_${preset}_$mode.json
    rm -f "$theirs"
    beside "PyTorch's $preset, $mode" "$limit" env LD_LIBRARY_PATH="$library_path" python3 "benchmarks/peers/$peer" \
      --device cuda --preset "$preset" --mode "$mode" $arguments ${layers:+--layers "$layers"} --json "$theirs" || true
    [ -f "$theirs" ] || continue
    add_rows awk -v what="$what" -v mode="$mode" -v rate="$rate" -v utilisation="$utilisation" -v bytes="$bytes" \
      -f scripts/step_beside.awk "$theirs"
  done
}
part_training() { model gpt2-124m 90 torch_gpt2_step.py "$gpt2_batch" compile; }
part_llama() { model llama-7b 120 torch_llama_step.py '' compile-blocks; }
part_large() { model gpt2-1558m 90 torch_gpt2_step.py "$gpt2_batch" compile-blocks; }

# Activations and states on the host.
part_offload() {
  check 'training, offload' 210 last_line tests/cli/gpu_offload.sh "$tool" || true
  add_rows sed -n 's/^row: //p' "$(log_of 'training, offload')"
}

# compute-sanitizer on the path, or in the toolkit that was built with. Both of its tools run beside the tests and the ranks,
# of which no time is asked: nothing that is measured runs meanwhile.
begin_sanitizers() {
  local nvcc found program once
  nvcc=$(sed -n 's/^CMAKE_CUDA_COMPILER:[^=]*=//p' "$build/CMakeCache.txt" | head -n 1)
  toolkit=$(realpath "$(dirname "${nvcc:-/usr/local/cuda/bin/nvcc}")/..")
  for found in "$(command -v compute-sanitizer || true)" "$toolkit"/{bin,compute-sanitizer}/compute-sanitizer; do
    if [ -x "$found" ]; then sanitizer=$found; break; fi
  done
  program=$(program_of kernels_cuda_test)
  if [ -z "$sanitizer" ] || [ -z "$program" ]; then return; fi
  # Calls of CUDA that fail inside the libraries are theirs to handle, and so are hazards in their kernels. One op in
  # three at either place, once: instrumented, all of them take minutes, and that they repeat themselves is seen beside.
  once='--gtest_filter=*AgreeWithTheCpu*:CudaErrors.*'
  local -x TESSERA_SAMPLE=3
  begin 'kernels under memcheck' 200 \
    "$sanitizer" --tool memcheck --report-api-errors no --error-exitcode 1 "$program" "$once"
  begin 'kernels under racecheck' 200 "$sanitizer" --tool racecheck --kernel-name kns=tessera --error-exitcode 1 "$program" "$once"
}
toolkit='' sanitizer=''
part_sanitizers() {
  local tool
  if [ -z "$sanitizer" ]; then row compute-sanitizer skipped 0 "it is not on the path, nor in $toolkit"; fi
  for tool in memcheck racecheck; do
    if [ -n "${since[kernels under $tool]:-}" ]; then collect "kernels under $tool" sanitizer_words || true; fi
  done
}

# In the order of all parts. What fails in one is a row, or ends the part alone.
chosen() { [[ ,$only, = *,"$1",* ]]; }
if chosen sanitizers; then begin_sanitizers || true; fi
for part in ${all_parts//,/ }; do
  if chosen "$part"; then "part_$part" || row "part $part" failed 0 "it ended early"; fi
done
finish
