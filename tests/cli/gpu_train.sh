#!/bin/sh
# gpu_train.sh TOOL MODEL [ARGUMENT...]: steps of gpt2-124m, gpt2-1558m or llama-7b on a GPU (gpu_runs.sh). Where the
# states of a Llama have no room, it has fewer layers: the most whose plan takes at most 0.8 of the GPU's memory, which leaves
# room for another trainer of the same model, too. Prints what the tool does, then lines
# "row: name|result|ratio|asked|note", as scripts/gpu_check.sh takes them, a line "figures: " for a comparison, and last
# tokens a second. Rows: model FLOPs utilisation; by how much the memory in use of the GPU grew, by the driver's count, with
# the kernels that were launched, over the plan's; and of gpt2-124m the share of a step in which the host gave the GPU its
# work. That is expected to be at most 0.05 of steps of 32 sequences: the host has as much to do for 8.
set -e
tool=$(realpath "$1")
preset=$2
shift 2
. "$(dirname "$0")/gpu_runs.sh"
unset CUDA_MODULE_LOADING  # EAGER would load all that cuBLASLt and cuDNN have with the first product: hundreds of MiB
model "$preset"
what=$preset layers='' steps=20
case $preset in
  gpt2-124m) steps=40 ;;
  llama-*)
    steps=12
    "$tool" info --json "$folder/info.json" >"$folder/info.txt"
    memory=$(figure info memory_bytes)
    "$tool" plan $settings "$@" --json "$folder/plan.json" >"$folder/plan.txt"
    all=$(grep -c '"unit": "block\.' "$folder/plan.json")
    layers=$(most_layers $all $((memory / 10 * 8)) "$@")
    [ -n "$layers" ] || { echo "skipped: not one layer of $preset has room in 0.8 of $memory bytes"; exit 0; }
    [ "$layers" = "$all" ] || what="$preset, $layers of $all layers" ;;
esac
train run --set run.steps=$steps "$@" ${layers:+--set model.layers=$layers}
from=$((steps / 4))
rate=$(median run tokens_per_second $from)
[ -n "$rate" ] || { echo "no step from number $from on was recorded"; exit 1; }
utilisation=$(median run model_flops_utilisation $from)
awk -v what="$what" -v utilisation="$utilisation" -v rate="$rate" -v flops="$(median run model_flops_per_second $from)" '
  BEGIN {
    printf "row: %s, utilisation|measured|%s||", what, utilisation == "" ? "" : sprintf("%.3f", utilisation)
    printf "%.0f tokens/s, %.1f TFLOP/s of the model", rate, flops / 1e12
    print utilisation == "" ? "; the peak of this GPU is not known" : " of its peak"
  }'
awk -v what="$what" -v plan="$(figure run predicted_bytes)" -v set_up="$(figure run set_up_bytes)" \
  -v first="$(figure run first_step_bytes)" -v later="$(figure run later_bytes)" '
  BEGIN {
    mib = 1048576
    grown = set_up + first + later
    graph = 16 * mib  # of a step, which the third is captured as
    fits = plan > 0 && grown >= plan && grown <= 1.01 * plan + 64 * mib && later <= graph
    ratio = plan > 0 ? grown / plan : 0
    printf "row: %s, device memory over the plan|%s|%.3f||", what, fits ? "passed" : "failed", ratio
    printf "grew %.1f MiB, plan %.1f; %.1f at set-up, ", grown / mib, plan / mib, set_up / mib
    printf "%.1f in the first step, %.1f later; asked: at most %.1f (1%% + 64 MiB), of it %.0f later\n", \
      first / mib, later / mib, (1.01 * plan + 64 * mib) / mib, graph / mib
  }'
if [ "$preset" = gpt2-124m ]; then
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
      result = share == "" ? "failed" : own <= 0.05 ? "as expected" : "below expectation"
      printf "row: host time to issue 32 sequences|%s|%.3f||of the step, %.3f with what it waits for the GPU to take; ", result, own, share
      printf "expected: at most 0.05\n"
    }'
fi
echo "figures: rate=$rate utilisation=$utilisation bytes=$(figure run measured_bytes) layers=$layers what='$what'"
printf '%.0f tokens/s\n' "$rate"
