#!/bin/sh
# gpu_train.sh TOOL [ARGUMENT...]: steps of gpt2-124m in bf16 on one GPU, 8 sequences of 1024 tokens. Prints what the tool
# does, then lines "row: name|result|ratio|required|note", as scripts/gpu_check.sh takes them, and last tokens a second from
# the tenth step on. Rows: by how much the memory in use of the GPU grew, by the driver's count with all kernels loaded
# before, over the plan's; and the share of a step in which the host gave the GPU its work.
set -e
tool=$(realpath "$1") config=$(realpath "$(dirname "$0")/../../benchmarks/peers/gpt2_step.toml")
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
seq -f 'line %g of a text that is trained on' 20000 >"$folder/text.txt"
export CUDA_MODULE_LOADING=EAGER
status=0
"$tool" train "$config" --set run.device=cuda --set precision.parameters=bf16 --set run.sequences=8 \
  --set run.length=1024 --set run.steps=40 --set data.train="$folder/text.txt" --set run.metrics="$folder/metrics" \
  --json "$folder/run.json" "$@" >"$folder/out.txt" 2>&1 || status=$?
cat "$folder/out.txt"
[ $status -eq 0 ] || exit $status
# Of the steps from the tenth on, the median; the first ones load libraries and choose algorithms.
median() {
  sed -n '10,$s/.*"'"$1"'": *\([0-9.e+-]*\).*/\1/p' "$folder/metrics" | sort -g | awk '
    { values[NR] = $1 } END { if (NR > 0) print values[int((NR + 1) / 2)] }'
}
bytes() { sed -n "s/^ *\"$1\": \([0-9-]*\),\{0,1\}\$/\1/p" "$folder/run.json"; }
rate=$(median tokens_per_second)
[ -n "$rate" ] || { echo "no step from the tenth on was recorded"; exit 1; }
awk -v plan="$(bytes predicted_bytes)" -v set_up="$(bytes set_up_bytes)" -v first="$(bytes first_step_bytes)" -v later="$(bytes later_bytes)" '
  BEGIN {
    mib = 1048576
    grown = set_up + first + later
    fits = plan > 0 && grown >= plan && grown <= 1.01 * plan + 64 * mib && later == 0
    ratio = plan > 0 ? grown / plan : 0
    printf "row: device memory over the plan|%s|%.3f||", fits ? "passed" : "failed", ratio
    printf "plan %d MiB; grew %d at set-up, %d in the first step, %d later", plan / mib, set_up / mib, first / mib, later / mib
    print "; asked: 1% + 64 MiB, nothing later"
  }'
awk -v share="$(median issued)" '
  BEGIN {
    result = share != "" && share <= 0.05 ? "passed" : "failed"
    printf "row: host time to issue a step|%s|%.3f||of the step; asked: at most 0.05\n", result, share
  }'
printf '%.0f tokens/s\n' "$rate"
