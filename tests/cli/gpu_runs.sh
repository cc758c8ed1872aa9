# Sourced by the scripts beside it, which set `tool`: runs of a model in bf16 on one GPU.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
peers=$(realpath "$(dirname "$0")/../../benchmarks/peers")
seq -f 'line %g of a text that is trained on' 20000 >"$folder/text.txt"
# model PRESET: what train() trains; sets `settings`, the first arguments of `tessera train` and `tessera plan`.
model() {
  case $1 in
    gpt2-*) settings="$peers/gpt2_step.toml --set model.preset=$1 --set run.sequences=8 --set run.length=1024" ;;
    llama-*) settings="$peers/llama_step.toml --set model.preset=$1" ;;
    *) echo "'$1' is no preset that is trained here; they begin with gpt2- or llama-" >&2; exit 2 ;;
  esac
  settings="$settings --set run.device=cuda --set precision.parameters=bf16 --set data.train=$folder/text.txt"
}
model gpt2-124m
# train NAME ARGUMENT...: leaves NAME.json and NAME.metrics in the folder, and shows what the tool said.
train() {
  run=$1 status=0
  shift
  "$tool" train $settings --set run.metrics="$folder/$run.metrics" --json "$folder/$run.json" "$@" \
    >"$folder/out.txt" 2>&1 || status=$?
  cat "$folder/out.txt"
  [ $status -eq 0 ] || exit $status
}
# planned_bytes ARGUMENT...: of the GPU's memory, of such a run.
planned_bytes() { "$tool" plan $settings "$@" | sed -n 's/^arena  *of device: \([0-9,]*\) bytes.*/\1/p' | tr -d ,; }
# most_layers MOST BYTES ARGUMENT...: the most layers, at most MOST, whose plan is within BYTES; nothing where one is not.
most_layers() {
  low=0 high=$1 bytes=$2
  shift 2
  while [ $low -lt $high ]; do
    middle=$(((low + high + 1) / 2))
    planned=$(planned_bytes "$@" --set model.layers=$middle)
    if [ -n "$planned" ] && [ "$planned" -le "$bytes" ]; then low=$middle; else high=$((middle - 1)); fi
  done
  [ $low -eq 0 ] || echo $low
}
# median NAME KEY FROM: of the steps' figures, from a line on; the first steps load libraries and choose algorithms.
median() {
  sed -n "$3,\$s/.*\"$2\": *\([0-9.e+-]*\).*/\1/p" "$folder/$1.metrics" | sort -g | awk '
    { values[NR] = $1 } END { if (NR > 0) print values[int((NR + 1) / 2)] }'
}
# figure NAME KEY: the first of that name.
figure() { sed -n "s/^ *\"$2\": \([0-9.e+-]*\),\{0,1\}\$/\1/p" "$folder/$1.json" | head -n 1; }
