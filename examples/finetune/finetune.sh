#!/usr/bin/env bash
# From text to answers in less than two minutes, on two cores: a tokenizer and a small Llama learn from licences, adapters
# (LoRA) learn to say which licence a sentence is from, and the result is measured, asked and drawn.
#   examples/finetune/finetune.sh [TOOL [FOLDER]]   the tool, build/release/bin/tessera by default; the folder of results,
#                                                   build/finetune by default
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
tool=${1:-$root/build/release/bin/tessera} out=${2:-$root/build/finetune}
licences=/usr/share/common-licenses
names=(Apache-2.0 Artistic GFDL-1.3 GPL-3 LGPL-2.1 MPL-2.0)
say() { printf '\n== %s\n' "$*"; }
[ $# -le 2 ] || { echo "finetune: '$3' is one argument too many" >&2; exit 2; }
[ -x "$tool" ] || { echo "finetune: there is no program '$tool'; build it by scripts/demo.sh" >&2; exit 1; }
for name in "${names[@]}"; do
  [ -r "$licences/$name" ] || { echo "finetune: cannot read '$licences/$name'" >&2; exit 1; }
done
tool=$(realpath "$tool")
if [ -e "$out" ] && [ $# -eq 2 ] && [ -n "$(ls -A "$out" 2>&1)" ]; then
  echo "finetune: '$out' is not an empty folder; name another" >&2
  exit 1
fi
[ $# -eq 2 ] || rm -rf "$out"  # the results of a run before
mkdir -p "$out/text" "$out/runs/pretrain" "$out/runs/finetune"
cd "$out"

# A question is twelve words that follow each other, an answer the licence's name. Of each 100 words the last 25 are kept
# for the test, and no question reaches from one part into the other. In the test all names are choices.
for name in "${names[@]}"; do
  cp "$licences/$name" "text/$name.txt"
  tr -s ' \t\n\f' ' ' <"$licences/$name" | tr -d '"\\' | tr -cd ' -~' |
    awk -v name="$name" -v all="${names[*]}" '{
      count = split(all, names, " ")
      for (k = 1; k <= count; ++k) { choices = choices (k > 1 ? ", " : "") "\"" names[k] "\""; if (names[k] == name) right = k - 1 }
      for (first = 1; first + 11 <= NF; first += 4) {
        begins = (first - 1) % 100; ends = (first + 10) % 100
        if (ends < begins || (begins < 75 && ends >= 75)) continue
        words = $first
        for (k = first + 1; k < first + 12; ++k) words = words " " $k
        prompt = "Which licence says: " words "?\\nAnswer:"
        if (begins >= 75)
          printf "{\"context\": \"%s\", \"choices\": [%s], \"answer\": %d}\n", prompt, choices, right >>"questions.jsonl"
        else
          printf "{\"prompt\": \"%s\", \"answer\": \" %s\"}\n", prompt, name >>"answers.jsonl"
      }
    }'
done

say "a tokenizer of 1024 tokens"
"$tool" tokenizer train text/*.txt --vocabulary 1024 --out tokenizer.json
"$tool" data prepare text/*.txt --tokenizer tokenizer.json --validation 0 --out tokens
"$tool" data prepare answers.jsonl --prompt-field prompt --answer-field answer --tokenizer tokenizer.json \
  --validation 0.05 --out answers

say "pretraining"
"$tool" train "$here/pretrain.toml" --set model.vocabulary=1024 --set data.train='tokens/train_*.bin' \
  --set data.validation_fraction=0.05 --set run.export=model --set run.metrics=runs/pretrain/metrics.jsonl \
  --json runs/pretrain/result.json

say "fine-tuning"
"$tool" train "$here/finetune.toml" --set model.weights=model --set data.train='answers/train_*.bin' \
  --set data.validation='answers/validation_*.bin' --set run.export=adapter \
  --set run.metrics=runs/finetune/metrics.jsonl --json runs/finetune/result.json

say "before and behind fine-tuning: ${#names[@]} choices"
"$tool" evaluate --choices questions.jsonl --weights model --json before.json
"$tool" evaluate --choices questions.jsonl --weights model --set model.adapter=adapter --json behind.json

say "a question"
question=$(printf 'Which licence says: %s?\nAnswer:' 'You may convey a work based on the Program, or the modifications to')
"$tool" generate --weights model --set model.adapter=adapter --prompt "$question" --temperature 0 --tokens 16
echo

say "a page of both runs"
"$tool" report runs/pretrain runs/finetune --html report.html
echo "see $out/report.html"
