#!/usr/bin/env bash
# Runs tests that draw from many cases with all of them, or with more; .ci/run has a few of each. Takes minutes.
#   scripts/long_tests.sh            all of them; exits 1 where one fails
#   scripts/long_tests.sh random     only those whose name has this word
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
[ $# -le 1 ] || refuse "'$2' is one argument too many"
word=${1:-}

# SETTING FOLDER/PROGRAM: the setting says how much of its cases the test takes.
tests='
TESSERA_SEEDS=1:24 plan/random_plan_test
TESSERA_SEEDS=1:200 verify/prove_test
TESSERA_SEEDS=1:100 engine/engine_random_strategy_test
TESSERA_SEEDS=1:400 engine/tensor_matrix_test
TESSERA_SAMPLE=1 build/offload_test
TESSERA_SAMPLE=1 program/pipeline_test
TESSERA_SAMPLE=1 engine/mesh_matrix_test
TESSERA_SAMPLE=1 plan/memory_plan_test
TESSERA_SAMPLE=1 tune/choose_activations_test
TESSERA_SAMPLE=1 engine/engine_update_when_test
TESSERA_SAMPLE=1 engine/offload_matrix_test
TESSERA_SAMPLE=1 engine/engine_simulated_test
TESSERA_SAMPLE=1 kernels/kernels_cudnn_graph_test
TESSERA_STEPS=4 emulated_cuda/emulated_nccl_engine_test
'
tests=$(grep -e "/.*$word" <<<"$tests") || refuse "no test of these has '$word' in its name"
scripts/install_packages.sh
configure release
mapfile -t targets < <(sed 's|.*/||' <<<"$tests")
for at in "${!targets[@]}"; do  # without cuDNN there is no test of its graphs
  ninja -C build/release -t query "${targets[at]}" >/dev/null 2>&1 || unset "targets[at]"
done
[ ${#targets[@]} -gt 0 ] || { echo "this build has none of these tests" >&2; exit 1; }
build release "${targets[@]}"

status=0
while read -r setting program; do
  log=build/long-$(basename "$program").log
  [ -x "build/release/tests/$program" ] || continue
  if env "$setting" "build/release/tests/$program" >"$log" 2>&1; then
    say "$program with $setting: $(tail -n 1 "$log")"
  else
    status=1
    say "$program with $setting FAILED; all of it is in $log"
  fi
done <<<"$tests"
exit $status
