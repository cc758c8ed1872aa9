#!/bin/sh
# gpu_offload.sh TOOL [ARGUMENT...]: the steps of gpu_train.sh with activations, and with optimizer states, on the host and
# without. Prints rows as that does. The losses must be equal.
set -e
tool=$(realpath "$1")
shift
. "$(dirname "$0")/gpu_runs.sh"
train none --set run.steps=20 "$@"
train activations --set run.steps=20 --set offload.activations=host "$@"
train states --set run.steps=20 --set offload.states=host "$@"
for name in activations states; do
  if [ "$(figure none loss)" != "$(figure $name loss)" ]; then
    echo "the loss is $(figure $name loss) with $name on the host, $(figure none loss) without"
    exit 1
  fi
done
# row NAME WHAT LIMIT: of NAME, a run's name.
row() {
  awk -v without="$(median none tokens_per_second 6)" -v with="$(median "$1" tokens_per_second 6)" \
    -v before="$(figure none "$2")" -v after="$(figure "$1" "$2")" -v most="$3" -v name="$1" -v what="$2" '
    BEGIN {
      ratio = with + 0 > 0 ? without / with : 0
      result = most == "" ? "measured" : ratio > 0 && ratio <= most + 0 ? "passed" : "failed"
      printf "row: step with %s on the host|%s|%.3f||of the step without", name, result, ratio
      if (most != "") printf "; asked: at most %s", most
      printf "; %s at the peak %.1f MiB, without %.1f\n", what, after / 1048576, before / 1048576
    }'
}
row activations activations 1.02
row states "optimizer state" ''
echo "losses are equal"
