#!/bin/sh
# gpu_offload.sh TOOL [ARGUMENT...]: the steps of gpu_train.sh with activations, and with optimizer states, on the host and
# without; then steps of gpt2-774m that keep the units' inputs alone, with these on the host and without. Prints rows as
# gpu_train.sh does. The losses must be equal.
# Copying all activations of gpt2-124m takes longer than its step, however well it overlaps: nothing is expected there. For each
# byte of an input a block of gpt2-774m has 16,000 operations in forward, so 400 TFLOP/s leave time for 25 GB/s.
set -e
tool=$(realpath "$1")
shift
. "$(dirname "$0")/gpu_runs.sh"
train_on_host() { train "$@" --set offload.activations=host --set run.trace="$folder/$1.trace" --set run.trace_steps=2; }
equal() {
  [ "$(figure "$1" loss)" = "$(figure "$2" loss)" ] && return
  echo "the loss is $(figure "$2" loss) of the run '$2', $(figure "$1" loss) of '$1'"
  exit 1
}
# copies NAME: for awk, a step's bytes and time to the host and back: two steps are on the run's timeline.
copies() {
  sed -n 's/.*"cat":"copy","dur":\([0-9.e+-]*\),"name":"[^[]*\[\([0-9]*\)\]. from \([a-z]*\) .*/\1 \2 \3/p' "$folder/$1.trace" | awk '
    { us[$3] += $1 / 2; bytes += $2 / 2 }
    END { printf "-v down_us=%.3f -v up_us=%.3f -v copied=%.0f", us["device"], us["host"], bytes }'
}
# rows WITHOUT WITH CATEGORY PROGRAM [ARGUMENT...]: by an awk program, of two runs and what a category takes at their peaks.
rows() {
  without=$1 with=$2 category=$3 program=$4
  shift 4
  awk -v without="$(median "$without" tokens_per_second 6)" -v with="$(median "$with" tokens_per_second 6)" \
    -v tokens="$(sed -n '1s/.*"tokens": *\([0-9]*\).*/\1/p' "$folder/$without.metrics")" -v before="$(figure "$without" "$category")" \
    -v after="$(figure "$with" "$category")" -v category="$category" -v hidden="$(median "$with" hidden 3)" "$@" '
    BEGIN {
      ratio = with + 0 > 0 ? without / with : 0
      memory = sprintf("%s at the peak %.1f MiB, without %.1f", category, after / 1048576, before / 1048576)
      step_us = without + 0 > 0 ? 1e6 * tokens / without : 0
      copy_us = down_us + up_us
      rate = copy_us > 0 ? copied / copy_us / 1e3 : 0
      copies = sprintf("copies of %.1f ms at %.1f GB/s, the step without %.1f ms", copy_us / 1e3, rate, step_us / 1e3)
    }'"$program"
}

train none --set run.steps=20 "$@"
train_on_host activations --set run.steps=20 "$@"
equal none activations
rows none activations activations '
  BEGIN {
    longer = step_us > copy_us ? step_us : copy_us
    printf "row: step with activations on the host|measured|%.3f||of the step without; %s; %s", ratio, memory, copies
    printf "; %.3f of the longer, %.0f%% hidden\n", (longer > 0 ? ratio * step_us / longer : 0), 100 * hidden
  }' $(copies activations)
train states --set run.steps=20 --set offload.states=host "$@"
equal none states
rows none states "optimizer state" '
  BEGIN { printf "row: step with states on the host|measured|%.3f||of the step without; %s\n", ratio, memory }'

large='--set model.preset=gpt2-774m --set strategy.recompute=full --set run.sequences=32 --set run.steps=11'
train large $large "$@"
train_on_host large_on_host $large "$@"
equal large large_on_host
# A quarter of such a step is forward, in which the inputs go to the host.
rows large large_on_host activations '
  BEGIN {
    saved = before > 0 ? 1 - after / before : 0
    printf "row: gpt2-774m, activations saved|%s|%.3f|0.47|%s\n", (saved >= 0.47 ? "passed" : "failed"), saved, memory
    hopes = down_us <= 0.2 * step_us || step_us == 0
    result = ratio == 0 ? "failed" : !hopes ? "measured" : ratio <= 1.02 ? "as expected" : "below expectation"
    printf "row: gpt2-774m, step with them on host|%s|%.3f||of the step without; ", result, ratio
    print (hopes ? "expected: at most 1.02; " : "nothing is expected of a link that is slower than forward; ") copies
    result = !hopes ? "measured" : hidden >= 0.9 ? "as expected" : "below expectation"
    printf "row: gpt2-774m, copies hidden|%s|%.3f|%s|of %.1f ms beside compute\n", result, hidden, (hopes ? "0.90" : ""), copy_us / 1e3
  }' $(copies large_on_host)
echo "losses are equal"
