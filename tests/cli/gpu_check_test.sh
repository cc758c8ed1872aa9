#!/usr/bin/env bash
# gpu_check_test.sh SOURCES: what scripts/gpu_check.sh makes of tools that fail, of tests that only skip, and of a GPU that
# cannot be used, over tools of the test's own.
set -euo pipefail
sources=$(realpath "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder"/{scripts,tools,tests/comm,tests/cli,toolkit/{bin,lib64},wheels/{nccl,cudnn,cublas,cuda_runtime,cu13}/lib}
unset CUDACXX CUDAToolkit_ROOT CUDA_HOME CUDA_PATH LD_LIBRARY_PATH
cp "$sources"/scripts/{gpu_check.sh,gpu_table.sh,common.sh,*.awk} "$folder/scripts"
cd "$folder"
make_tool() { { echo '#!/usr/bin/env bash'; cat; } >"$1" && chmod +x "$1"; }
for script in tests/comm/launch.sh tests/cli/gpu_ranks.sh tests/cli/gpu_offload.sh; do
  make_tool "$script" <<<'echo "row: memory|passed|1.001||as planned"; echo "60000 tokens/s, as it were"'
done
make_tool tests/cli/gpu_train.sh <<'END'
[ "$2" != "${NO_ROOM:-}" ] || { echo "skipped: not one layer of $2 has room"; exit 0; }
[ "$2" != "${DIES:-}" ] || exit 1
what=$2 layers=
[ "$2" != llama-7b ] || { what="$2, 20 of 32 layers"; layers=20; }
echo "row: $what, device memory over the plan|passed|1.001||as planned"
echo "row: host time|${HOST_TIME:-as expected}|0.040|0.05|of the step"
echo "figures: rate=60000 utilisation=0.5 bytes=1073741824 layers=$layers what='$what'"
echo "60000 tokens/s, as it were"
END
make_tool tools/nvidia-smi <<<'echo "${SMI-Fake GPU}"'
make_tool tools/python3 <<'END'
[ -n "${TORCH:-}" ] || exit 1
echo "$LD_LIBRARY_PATH" >>build/python_path.txt
echo "$*" >>build/python.txt
[ -z "${NO_MEMORY:-}" ] || [[ "$*" != *_step.py* ]] || echo "skipped: PyTorch has no room: 8 GiB"
[[ "$*" != *nvidia* ]] || realpath wheels
while [ $# -gt 1 ]; do
  [ "$1" != --json ] || [ -n "${NO_MEMORY:-}" ] ||
    printf '{\n "tokens_per_second": 50000.5,\n "device_bytes": 2147483648,\n "best_tokens_per_second": 70000.0\n}\n' >"$2"
  shift
done
END
make_tool toolkit/bin/nvcc <<<'echo "Cuda compilation tools, release ${CUDA:-13.0}, V13.0.88"'
ln -s ../toolkit/bin/nvcc tools/nvcc
make_tool tools/ctest <<<'printf "  Test #%d: %s\n" 1 kernels_cuda_test 2 comm_nccl_test'
make_tool tools/compute-sanitizer <<<'touch build/sanitizer; echo "${SANITIZER-========= ERROR SUMMARY: 0 errors}"; exit ${SANITIZER+1}'
# Configures, or builds what of the programs is not named in $BROKEN.
make_tool tools/cmake <<'END'
printf '%s\n' "$@" >>build/cmake.txt
if [ "$1" = -S ]; then
  printf '%b' "${CONFIGURE:-}${CONFIGURED:-}"
  echo CMAKE_CUDA_COMPILER:FILEPATH=/usr/local/cuda/bin/nvcc >build/gpu/CMakeCache.txt
  exit ${CONFIGURE:+1}
fi
mkdir -p build/gpu/bin build/gpu/tests
put() { [[ ${BROKEN:-} = *"$1"* ]] || { { echo '#!/usr/bin/env bash'; cat; } >build/gpu/$2/$1 && chmod +x build/gpu/$2/$1; }; }
put tessera bin <<<'echo "${INFO:-GPU 0          Fake GPU, 81559.0 MiB, compute capability 9.0}"'
put bench_cuda_kernels bin <<<'echo "{}"'
put kernels_cuda_test tests <<<'echo "${KERNELS:-[       OK ] Ops.Agree (1 ms)}"; eval "${KERNELS_DO:-}"'
put comm_nccl_test tests <<<'printf "%s\n" "a.cpp:1: Skipped" "1 GPU is here" "[  SKIPPED ] A.B (0 ms)" "[  PASSED  ] 0 tests."'
[ -z "${BROKEN:-}" ] || { echo "[1/2] Building src/error.cpp.o"; echo "a.cu(3): error: no such thing"; exit 1; }
END
# run STATUS [VARIABLE=VALUE...] [-- ARGUMENT...]: out.txt and build/gpu-check.json of a run that ends so.
run() {
  local expected=$1 status=0 variables=()
  shift
  while [ $# -gt 0 ] && [ "$1" != -- ]; do variables+=("$1"); shift; done
  [ $# -eq 0 ] || shift
  rm -rf build
  env PATH="$folder/tools:$PATH" "${variables[@]}" scripts/gpu_check.sh "$@" >out.txt 2>&1 || status=$?
  [ $status = "$expected" ] && return
  echo "exit $status, expected $expected, with ${variables[*]} $*:"
  cat out.txt
  exit 1
}
holds() { grep -q -- "$2" "$1" || { echo "no '$2' in $1:"; cat "$1"; exit 1; }; }
lacks() { if grep -- "$2" "$1"; then echo "that is in $1"; exit 1; fi; }
row() { holds build/gpu-check.json "{\"name\": \"$1\", \"result\": \"$2\", .*\"note\": \"$3\"}"; }
json() { ! command -v python3 >/dev/null || python3 -m json.tool build/gpu-check.json >/dev/null; }

run 0
json
row kernels_cuda_test passed '1 passed, 0 failed, 0 skipped'
tar --list --file build/gpu-check-logs.tgz | grep -q '^logs/kernels_cuda_test.log$'
row comm_nccl_test skipped '0 passed, 0 failed, 1 skipped: 1 GPU is here'
row 'kernels under memcheck' passed 'ERROR SUMMARY: 0 errors'
row 'training, gpt2-124m' passed '60000 tokens/s, as it were'
holds build/gpu-check.json '"gpt2-124m, device memory over the plan", "result": "passed", .*"ratio": 1.001, "required": null, "note": "as planned"'
holds build/gpu-check.json '"host time", "result": "as expected", .*"ratio": 0.040, "expected": 0.05, "note": "of the step"'
holds build/gpu-check.json '"gpu": "Fake GPU", "result": "passed"'
holds out.txt '^passed in .* on Fake GPU, 5 skipped; '
row 'llama-7b beside PyTorch' skipped 'python3 has no torch .*'

# A speed that was only hoped for is counted, and no failure; a word that is no result is one.
run 0 'HOST_TIME=below expectation'
holds out.txt '^passed in .* on Fake GPU, 3 below expectation, 5 skipped; '
run 1 HOST_TIME=fine
row 'host time' failed "'fine' is no result; of the step"

# Beside PyTorch, whose AdamW gives no figure here. What it brings along is built with and loaded, behind the toolkit's own
# what a toolkit may lack; PyTorch itself loads what it would.
run 1 TORCH=yes LD_LIBRARY_PATH=/own KERNELS_DO='echo "$LD_LIBRARY_PATH" >build/path.txt'
wheels=$folder/wheels
holds build/cmake.txt "^-DCMAKE_PREFIX_PATH=$wheels/nccl;$wheels/cudnn;$folder/toolkit;$wheels/cu13$"
holds build/path.txt "^$wheels/nccl/lib:$wheels/cudnn/lib:/own:$folder/toolkit/lib64:$wheels/cu13/lib$"
lacks build/python_path.txt wheels
row kernels_cuda_test passed '1 passed, .*'
row 'AdamW bf16 beside PyTorch' failed 'a rate is missing'
for mode in eager compile; do
  row "gpt2-124m beside PyTorch, $mode" measured '60000 and 50000 tokens/s, utilisation 0.500 and 0.417; memory 1.00 and 2.00 GiB'
done
holds build/gpu-check.json '"ratio": 1.200, "required": null, "note": "60000 and'
row 'llama-7b, 20 of 32 layers beside PyTorch, compile-blocks' measured '.*'
row 'gpt2-1558m beside PyTorch, eager' measured '.*'
holds build/python.txt '^benchmarks/peers/torch_llama_step.py --device cuda --preset llama-7b --mode compile-blocks --layers 20 --json '
holds build/python.txt '^benchmarks/peers/torch_gpt2_step.py --device cuda --preset gpt2-124m --mode compile --dtype bf16 --sequences 8 '
run 0 TORCH=yes NO_MEMORY=yes -- --only training
row "PyTorch's gpt2-124m, eager" skipped 'PyTorch has no room: 8 GiB'
lacks build/gpu-check.json '"gpt2-124m beside PyTorch'

# Activations and states on the host where it is asked for.
lacks build/gpu-check.json offload
run 0 -- --only offload
row 'training, offload' passed '60000 tokens/s, as it were'

# A model that fails, or has no room, keeps nothing else from running.
run 1 TORCH=yes DIES=gpt2-124m -- --only training,llama
row 'gpt2-124m beside PyTorch' skipped "there is no figure of Tessera's"
row 'training, llama-7b' passed '.*'
run 0 TORCH=yes NO_ROOM=llama-7b -- --only llama,large
row 'training, llama-7b' skipped 'not one layer of llama-7b has room'
row 'training, gpt2-1558m' passed '.*'

# The wheels of CUDA 12 have a folder for each library.
run 0 TORCH=yes CUDA=12.4 -- --only tests
holds build/cmake.txt "^-DCMAKE_PREFIX_PATH=$wheels/nccl;$wheels/cudnn;$folder/toolkit;$wheels/cuda_runtime;$wheels/cublas$"

# Another toolkit, whose version nobody tells.
run 0 TORCH=yes -- --only tests -- -DCUDAToolkit_ROOT="$folder/other"
holds build/cmake.txt "cudnn;$folder/other;$wheels/cu13$"

# Whatever a note holds, the table is JSON.
run 1 'CONFIGURE=CMake Error: "a" | b\\c \t \303\244\nmore'
json
row configure failed 'CMake Error: \\"a\\" / b\\\\c ? ?? (see .*'
holds out.txt '^more$'  # the log of what failed
run 1 'CONFIGURE=-- Found it\nCMake Error at cmake/cuda.cmake:12 (message):\n  TESSERA_WITH_CUDA=ON: no\n  cublasLt.h\nCall Stack:\n'
row configure failed 'CMake Error at cmake/cuda.cmake:12 (message): TESSERA_WITH_CUDA=ON: no cublasLt.h (see .*'
run 0 'CONFIGURED=-- Without NVTX: it has no header\n'
row NVTX skipped 'this build has none: it has no header'
run 1 'CONFIGURED=-- Without CUDNN: it is old\n' $'INFO=built with  CUDA 13.0, cuDNN none\nGPU 0          Fake GPU, 1.0 MiB'
row cuDNN failed 'this build has none: it is old'

# What does not compile keeps nothing else from running.
run 1 BROKEN=kernels_cuda_test
row build failed 'a.cu(3): error: no such thing .*'
row kernels_cuda_test failed 'it was not built'
row 'training, gpt2-124m' passed '.*'
run 1 BROKEN=tessera
row 'tessera info' failed 'the tool was not built'

# A GPU that nvidia-smi sees and CUDA does not; one without nvidia-smi.
run 1 'INFO=GPUs           none: system not yet initialized'
row GPU failed 'system not yet initialized, so no test can run'
run 0 SMI=
holds build/gpu-check.json '"gpu": "Fake GPU"'

# A failure is shown; a program that dies is none that skipped.
run 1 $'KERNELS=a.cpp:7: Failure\nis 1, expected 2\n[  FAILED  ] Ops.Agree (1 ms)' KERNELS_DO='exit 1'
row kernels_cuda_test failed '0 passed, 1 failed, 0 skipped .*'
holds out.txt '^is 1, expected 2$'
run 1 KERNELS=hm 'KERNELS_DO=kill -SEGV $$'
row kernels_cuda_test failed 'exit 139 without a failed test; 0 passed, 0 failed, 0 skipped .*'
run 1 $'KERNELS=a.cpp:1: Skipped\nno\n[  SKIPPED ] A.B (0 ms)\n[  PASSED  ] 0 tests.' 'KERNELS_DO=kill -SEGV $$'
row kernels_cuda_test failed 'exit 139 without a failed test; 0 passed, 0 failed, 1 skipped .*'
run 0 'KERNELS_DO=for i in {1..99}; do [ ! -e build/sanitizer ] || exit 0; sleep 0.1; done; exit 1' -- --only tests,sanitizers
row kernels_cuda_test passed '.*'  # beside the sanitizer
row 'kernels under racecheck' passed 'ERROR SUMMARY: 0 errors'
run 0 SANITIZER='========= Error: Device not supported. Please refer to the documentation'
row 'kernels under memcheck' skipped 'compute-sanitizer does not support this device'
rm tools/compute-sanitizer
run 0
row compute-sanitizer skipped 'it is not on the path, .*'

# Some parts alone, of which there are no others.
run 0 -- --only tests,sanitizers
row kernels_cuda_test passed '.*'
row compute-sanitizer skipped '.*'
lacks build/gpu-check.json training
holds build/cmake.txt '^comm_nccl_test$'
run 0 -- --only sanitizers
row compute-sanitizer skipped '.*'
lacks build/cmake.txt comm_nccl_test
run 0 -- --only training
row 'training, gpt2-124m' passed '.*'
lacks build/gpu-check.json kernels_cuda_test
lacks build/cmake.txt kernels_cuda_test
run 2 -- --only tests,test
holds out.txt "--only has 'test'; there are tests, ranks, "
run 2 -- --only ''
holds out.txt '--only names nothing'

# Files are where the caller means them.
mkdir elsewhere
tar --create --gzip --file elsewhere/libraries.tar.gz tools
(cd elsewhere && PATH=$folder/tools:$PATH ../scripts/gpu_check.sh --only tests --libraries libraries.tar.gz --json table.json) >out.txt
holds elsewhere/table.json '"name": "unpack", "result": "passed"'
holds out.txt "; written to $folder/elsewhere/table.json$"

# One that does not listen ends none the less, and what has no time left says so.
run 1 TORCH=yes 'KERNELS_DO=trap "" TERM; while :; do sleep 1; done' -- --seconds 5
row kernels_cuda_test failed 'over its time; .*'
row 'training, gpt2-124m' failed 'no time was left'
row "PyTorch's AdamW" skipped 'no time was left'
json
