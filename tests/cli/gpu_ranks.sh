#!/bin/sh
# gpu_ranks.sh TOOL LAUNCH: trains with two processes that share the GPUs there are, at stages 0 and 3; the losses must
# be equal. LAUNCH is tests/comm/launch.sh.
set -e
tool=$(realpath "$1") launch=$(realpath "$2")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
seq -f 'line %g of a text that is trained on' 600 >text.txt
cat >run.toml <<END
model = {layers = 4, heads = 4, channels = 64, context = 64}
mesh = {shard = 2}
data = {train = "$folder/text.txt"}
run = {device = "cuda", steps = 20, sequences = 2, length = 64, microbatches = 2, deadline = 30}
END
for stage in 0 3; do
  "$launch" 2 "$tool" train run.toml --set strategy.stage=$stage --set strategy.reduce=each --json $stage.json \
    >$stage.txt || { cat $stage.txt; exit 1; }
  grep '"loss"\|"first_loss"\|"steps"' $stage.json >$stage.figures
done
diff 0.figures 3.figures
grep -q '^exchange  NCCL' 3.txt
grep 'tokens/s' 3.txt | tail -n 1
