#!/bin/sh
# compare_tool.sh TOOL LAUNCHER RANKS MESH: trains with ranks as threads and as processes, and resumes the
# processes' run with threads; losses and checkpoints must be equal to the byte, those of the resumed run to those
# of one that never stopped. MESH is TOML, "shard = 2".
set -e
tool=$1 launcher=$2 ranks=$3 mesh=$4
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
seq -f 'line %g of a text that is trained on' 600 >"$folder/text.txt"
cat >"$folder/run.toml" <<END
model = {layers = 2, heads = 2, channels = 16, context = 16, dropout = 0.1, attention_dropout = 0.1}
mesh = {$mesh}
schedule = {kind = "constant"}
data = {train = "$folder/text.txt"}
run = {steps = 8, sequences = 2, length = 16, microbatches = 2, deadline = 20, checkpoint = "checkpoints"}
END
mkdir "$folder/threads" "$folder/processes"
(cd "$folder/threads" && "$tool" train ../run.toml --json result.json >out.txt)
cd "$folder/processes"
"$launcher" "$ranks" "$tool" train ../run.toml --json result.json >out.txt || exit $?
cd ..
grep '"loss"\|"first_loss"\|"steps"\|"tokens"' threads/result.json >threads/figures
grep '"loss"\|"first_loss"\|"steps"\|"tokens"' processes/result.json >processes/figures
diff threads/figures processes/figures
diff -r threads/checkpoints processes/checkpoints
grep -q "$ranks ranks as processes" processes/out.txt
grep -q '^exchange  direct' processes/out.txt
[ "$(grep -c 'tokens/s' processes/out.txt)" -ge 1 ]
[ "$(grep -c 'ranks as processes' processes/out.txt)" -eq 1 ]  # one rank speaks
more="--set run.steps=10 --set run.resume=auto"
mkdir straight
for run in processes straight; do
  (cd $run && "$tool" train ../run.toml $more >more.txt)
done
grep -q 'resumed   at step 8' processes/more.txt
diff -r processes/checkpoints/step-00000010 straight/checkpoints/step-00000010

# A signal to any rank ends the run after a step, as well as it would end by itself.
(cd processes && "$launcher" "$ranks" "$tool" train ../run.toml --set run.checkpoint= --set run.steps=0 \
  --set run.seconds=60 >signal.txt) &
run=$!
until grep -q 'step 1' processes/signal.txt 2>/dev/null; do sleep 0.1; kill -0 $run; done
last=$((ranks - 1))
for process in /proc/[0-9]*; do
  if tr '\0' '\n' <"$process/environ" 2>/dev/null | grep -qx "OMPI_COMM_WORLD_RANK=$last\|PMI_RANK=$last\|RANK=$last" &&
    [ "$(readlink "$process/cwd")" = "$folder/processes" ]; then
    kill -TERM "${process#/proc/}"
  fi
done
wait $run
grep -q 'ended by a signal' processes/signal.txt
