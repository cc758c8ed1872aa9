# Sourced by the scripts beside it, which set `tool`: runs of gpt2-124m in bf16 on one GPU, 8 sequences of 1024 tokens
# where the arguments do not say otherwise.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
config=$(realpath "$(dirname "$0")/../../benchmarks/peers/gpt2_step.toml")
seq -f 'line %g of a text that is trained on' 20000 >"$folder/text.txt"
# train NAME ARGUMENT...: leaves NAME.json and NAME.metrics in the folder, and shows what the tool said.
train() {
  name=$1 status=0
  shift
  "$tool" train "$config" --set run.device=cuda --set precision.parameters=bf16 --set run.sequences=8 \
    --set run.length=1024 --set data.train="$folder/text.txt" --set run.metrics="$folder/$name.metrics" \
    --json "$folder/$name.json" "$@" >"$folder/out.txt" 2>&1 || status=$?
  cat "$folder/out.txt"
  [ $status -eq 0 ] || exit $status
}
# median NAME KEY FROM: of the steps' figures, from a line on; the first steps load libraries and choose algorithms.
median() {
  sed -n "$3,\$s/.*\"$2\": *\([0-9.e+-]*\).*/\1/p" "$folder/$1.metrics" | sort -g | awk '
    { values[NR] = $1 } END { if (NR > 0) print values[int((NR + 1) / 2)] }'
}
# figure NAME KEY: the first of that name.
figure() { sed -n "s/^ *\"$2\": \([0-9.e+-]*\),\{0,1\}\$/\1/p" "$folder/$1.json" | head -n 1; }
