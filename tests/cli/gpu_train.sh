#!/bin/sh
# gpu_train.sh TOOL [ARGUMENT...]: steps of gpt2-124m on a GPU (gpu_runs.sh). Prints what the tool does, then lines
# "row: name|result|ratio|required|note", as scripts/gpu_check.sh takes them, and last tokens a second from the tenth step
# on. Rows: by how much the memory in use of the GPU grew, by the driver's count, with the kernels that were launched, over
# the plan's; and the share of a step in which the host gave the GPU its work, which is asked of steps of 32 sequences: the
# host has as much to do for 8.
set -e
tool=$(realpath "$1")
shift
. "$(dirname "$0")/gpu_runs.sh"
unset CUDA_MODULE_LOADING  # EAGER would load all that cuBLASLt and cuDNN have with the first product: hundreds of MiB
train run --set run.steps=40 "$@"
rate=$(median run tokens_per_second 10)
[ -n "$rate" ] || { echo "no step from the tenth on was recorded"; exit 1; }
awk -v plan="$(figure run predicted_bytes)" -v set_up="$(figure run set_up_bytes)" \
  -v first="$(figure run first_step_bytes)" -v later="$(figure run later_bytes)" '
  BEGIN {
    mib = 1048576
    grown = set_up + first + later
    fits = plan > 0 && grown >= plan && grown <= 1.01 * plan + 64 * mib && later == 0
    ratio = plan > 0 ? grown / plan : 0
    printf "row: device memory over the plan|%s|%.3f||", fits ? "passed" : "failed", ratio
    printf "grew %.1f MiB, plan %.1f; %.1f at set-up, ", grown / mib, plan / mib, set_up / mib
    printf "%.1f in the first step, %.1f later; asked: at most %.1f (1%% + 64 MiB), none of it later\n", \
      first / mib, later / mib, (1.01 * plan + 64 * mib) / mib
  }'
train more --set run.sequences=32 --set run.steps=11 "$@"
# A queue of the GPU that is full holds the host up, which is no work of its own: the shorter of both times counts.
awk -v few="$(median run issued 3)" -v few_rate="$(median run tokens_per_second 3)" \
  -v share="$(median more issued 3)" -v rate="$(median more tokens_per_second 3)" '
  BEGIN {
    printf "row: host time to issue 8 sequences|measured|%.3f||of the step\n", few
    own = share
    if (few != "" && few_rate > 0 && rate > 0) {
      unhindered = few * (8 / few_rate) / (32 / rate)
      if (unhindered < share) own = unhindered
    }
    result = share != "" && own <= 0.05 ? "passed" : "failed"
    printf "row: host time to issue 32 sequences|%s|%.3f||of the step, %.3f with what it waits for the GPU to take; ", result, own, share
    printf "asked: at most 0.05\n"
  }'
printf '%.0f tokens/s\n' "$rate"
