#!/usr/bin/env bash
# finetune_test.sh TOOL: the example runs, and adapters teach the model what it did not know.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$(dirname "${BASH_SOURCE[0]}")/finetune.sh" "$1" "$folder/out" >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
accuracy() { sed -n 's/^ *"accuracy": \([0-9.]*\).*/\1/p' "$folder/out/$1" | head -n 1; }
before=$(accuracy before.json) behind=$(accuracy behind.json)
echo "accuracy $before, behind fine-tuning $behind"
awk -v before="$before" -v behind="$behind" 'BEGIN { exit !(before > 0 && behind > before + 0.1 && behind > 0.45) }'
grep -q '^loss .* validation ' "$folder/log"
[ -s "$folder/out/report.html" ] && [ -s "$folder/out/adapter/adapter_model.safetensors" ]
