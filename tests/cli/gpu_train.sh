#!/bin/sh
# gpu_train.sh TOOL [ARGUMENT...]: steps of gpt2-124m in bf16 on one GPU, 8 sequences of 1024 tokens. The last line that
# it prints: tokens a second from the tenth step on, the plan's peak on the device, and by how much the memory that the
# driver sees in use grew, which holds the CUDA context and the libraries' kernels, too.
set -e
tool=$(realpath "$1") config=$(realpath "$(dirname "$0")/../../benchmarks/peers/gpt2_step.toml")
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
seq -f 'line %g of a text that is trained on' 20000 >"$folder/text.txt"
used() { nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits --id=0 2>/dev/null || true; }
before=$(used)
"$tool" train "$config" --set run.device=cuda --set precision.parameters=bf16 --set run.sequences=8 \
  --set run.length=1024 --set run.steps=40 --set data.train="$folder/text.txt" --set run.metrics="$folder/metrics" \
  --json "$folder/run.json" "$@" >"$folder/out.txt" 2>&1 &
training=$!
most=$before
while kill -0 $training 2>/dev/null; do
  now=$(used)
  if [ -n "$now" ] && [ "$now" -gt "${most:-0}" ]; then most=$now; fi
  sleep 0.2
done
status=0
wait $training || status=$?
cat "$folder/out.txt"
[ $status -eq 0 ] || exit $status
# The first steps load libraries and choose algorithms.
rate=$(sed -n 's/.*"tokens_per_second": *\([0-9.e+]*\).*/\1/p' "$folder/metrics" | tail -n +10 | sort -g | awk '
  { rates[NR] = $1 } END { if (NR > 0) printf "%.0f", rates[int((NR + 1) / 2)] }')
[ -n "$rate" ] || { echo "no step from the tenth on was recorded"; exit 1; }
plan=$(awk '/"predicted": \{/ { inside = 1 }
  inside && /"arena_bytes"/ { gsub(/[^0-9]/, ""); print; exit }' "$folder/run.json")
driver='not known: nvidia-smi gave none'
if [ -n "$before" ] && [ -n "$most" ]; then driver="$((most - before)) MiB"; fi
echo "$rate tokens/s, plan $((plan / 1048576)) MiB, grown by the driver's count: $driver"
