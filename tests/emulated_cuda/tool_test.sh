#!/bin/sh
# tool_test.sh TOOL EMULATED: trains by threads on the CPU, and by as many on emulated GPUs, with the tool over the
# emulation; the losses must be near each other, and equal for all stages.
set -e
tool=$1 emulated=$2 here=$(realpath "$(dirname "$0")/../cli")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
seq -f 'line %g of a text that is trained on' 600 >text.txt
cat >run.toml <<END
model = {layers = 2, heads = 2, channels = 16, context = 16}
mesh = {shard = 2}
precision = {parameters = "fp32"}
data = {train = "$folder/text.txt"}
run = {steps = 4, sequences = 2, length = 16, microbatches = 2, deadline = 20}
END
figure() { sed -n "s/^ *\"$1\": \([0-9.]*\).*/\1/p" "$2"; }
"$tool" train run.toml --json cpu.json >cpu.txt
for stage in 0 3; do
  "$emulated" train run.toml --set run.device=cuda --set strategy.stage=$stage --set strategy.reduce=each \
    --json $stage.json >$stage.txt
done
[ -n "$(figure loss 0.json)" ]
"$emulated" train run.toml --set run.device=cuda --set strategy.reduction=native --json native.json >native.txt
awk -v a="$(figure loss 0.json)" -v b="$(figure loss native.json)" 'BEGIN {exit !(b > 0 && (a - b) ^ 2 < (1e-3 * a) ^ 2)}'
grep -q '^exchange  NCCL .*, sums of its own' native.txt
[ "$(figure loss 0.json)" = "$(figure loss 3.json)" ]
awk -v a="$(figure loss cpu.json)" -v b="$(figure loss 0.json)" 'BEGIN {exit !(a > 0 && (a - b) ^ 2 < (1e-3 * a) ^ 2)}'
# States are read from the GPU beside the next step: of the step that they were saved behind.
for beside in true false; do
  "$emulated" train run.toml --set run.device=cuda --set strategy.stage=3 --set run.checkpoint=$beside \
    --set run.checkpoint_every=2 --set run.checkpoint_async=$beside >$beside.txt
  grep -q "^step 2  saved $beside/step-00000002" $beside.txt
  for step in 2 4; do
    "$tool" checkpoint verify $beside/step-0000000$step >verified.txt
    "$tool" checkpoint export run.toml $beside/step-0000000$step $beside$step.safetensors >exported.txt
  done
done
cmp true2.safetensors false2.safetensors
cmp true4.safetensors false4.safetensors
! cmp -s true2.safetensors true4.safetensors
grep -q '^device    rank 0 on GPU 0 of 9' 3.txt
grep -q 'FLOP/s of the model$' 3.txt  # of no known GPU, so no share of a peak
# By the driver's count the GPUs hold the plan, what libraries took before it, little else but kernels, and nothing new once
# these were loaded. Libraries are a handle of cuBLASLt, communicators of three lanes with the one they are split from, and
# their staging memory.
awk -v plan="$(figure predicted_bytes 3.json)" -v all="$(figure measured_bytes 3.json)" -v set_up="$(figure set_up_bytes 3.json)" \
  -v libraries="$(figure libraries_bytes 3.json)" -v first="$(figure first_step_bytes 3.json)" -v later="$(figure later_bytes 3.json)" 'BEGIN {
    exit !(plan > 0 && libraries > 2 * (65536 + 4 * 32768) && libraries < 2 * (65536 + 4 * 32768) + 131072 &&
      set_up >= plan + libraries && set_up <= plan + libraries + 8192 && first > 0 && later == 0 && all == set_up + first) }'
grep -q '^libraries  *0\.[0-9][0-9]$' 3.txt
# A budget that the plan alone keeps does not hold libraries, too.
budget=$(($(figure predicted_bytes 3.json) / 2))
if "$emulated" train run.toml --set run.device=cuda --set strategy.stage=3 --set run.device_memory=$budget >out.txt 2>err.txt; then exit 1; fi
grep -q "rank 0: the plan needs $budget bytes .* and communicators and libraries have taken [0-9]* .* but run.device_memory is $budget: [0-9]* bytes are missing" err.txt
grep -q "^(measured: how much the GPUs' memory in use grew by their driver's count, over 2 ranks: " 3.txt
[ -z "$(figure set_up_bytes cpu.json)" ]
"$emulated" train run.toml --set run.device=cuda --set run.peak_tflops=1 >share.txt
grep -q '% of the 2.0 TFLOP/s that 2 ranks could reach$' share.txt
grep -q '^exchange  NCCL 2\.28\.9' 3.txt
"$emulated" info | grep -q '^NCCL           2\.28\.9'
# States on the host, whose thread the streams wait for; then with a driver that has no such waits.
host="--set run.device=cuda --set strategy.stage=3 --set offload.states=host"
"$emulated" train run.toml $host --json waits.json >waits.txt
EMULATED_CUDA_STREAM_MEMORY=missing "$emulated" train run.toml $host --json caller.json >caller.txt
[ "$(figure loss waits.json)" = "$(figure loss caller.json)" ]
! grep -q 'the calling thread waits' waits.txt
grep -q '^          GPU 0: the calling thread waits .* the NVIDIA driver has no cuStreamWriteValue32$' caller.txt
grep -q '"GPU 0: the calling thread waits' caller.json
CUDA_DEVICE_MAX_CONNECTIONS=1 "$emulated" train run.toml $host --json queues.json >queues.txt
[ "$(figure loss waits.json)" = "$(figure loss queues.json)" ]
grep -q "^          GPU 0: .* streams share 1 hardware queues .*: CUDA_DEVICE_MAX_CONNECTIONS is '1' in the environment; set" queues.txt
"$emulated" info | grep -q '^               its streams wait by themselves for threads of the host$'
EMULATED_CUDA_STREAM_MEMORY=missing "$emulated" info | grep -q '^               threads of the host are waited for by the caller: the'
# Text from cached keys and values: that of the CPU.
"$tool" train run.toml --set run.export=weights --set run.steps=30 --set schedule.learning_rate=0.01 >trained.txt
prompt="--weights weights --prompt-file prompt.txt --tokens 11 --temperature 0"
printf 'line ' >prompt.txt
"$tool" generate $prompt >cpu_text.txt 2>said.txt
"$emulated" generate $prompt --prompt-rows 4 --set run.device=cuda >gpu_text.txt 2>said.txt
"$emulated" generate $prompt --ranks 2 --set run.device=cuda --set strategy.stage=3 >gpus_text.txt 2>said.txt
[ "$(wc -c <cpu_text.txt)" = 11 ]
cmp cpu_text.txt gpu_text.txt
cmp cpu_text.txt gpus_text.txt
# A run saved from GPUs and resumed is one that never stopped, on a mesh with all axes.
more="--set run.device=cuda --set mesh.pipeline=2 --set mesh.replicate=2 --set strategy.state_over_replicas=true
  --set run.resume=auto --set run.checkpoint=saved --set schedule.kind=constant"
mkdir straight stopped
(cd straight && "$emulated" train ../run.toml $more >out.txt)
(cd stopped && "$emulated" train ../run.toml $more --set run.steps=2 >out.txt &&
  "$emulated" train ../run.toml $more >more.txt)
grep -q 'resumed   at step 2' stopped/more.txt
diff -r straight/saved/step-00000004 stopped/saved/step-00000004
# What scripts/gpu_check.sh makes of a run.
small="--set run.sequences=1 --set run.length=16 --set run.steps=11 --set model.layers=3 --set model.heads=2
  --set model.channels=16 --set model.vocabulary=256"
"$here/gpu_train.sh" "$emulated" gpt2-124m $small >row.txt
grep -q '^row: gpt2-124m, device memory over the plan|passed|1\.[0-9]*||grew [01]\.[0-9] MiB, plan 0\.[0-9]; .*; asked: at most 64\.[0-9] ' row.txt
grep -q '^row: host time to issue 8 sequences|measured|0\.[0-9]*||' row.txt
grep -q '^row: host time to issue 32 sequences|\(as expected\|below expectation\)|0\.[0-9]*||' row.txt
tail -n 1 row.txt | grep -q '^[1-9][0-9]* tokens/s$'
# A Llama gets the most layers whose plan has room.
"$here/gpu_train.sh" "$emulated" llama-7b $small --set model.hidden=16 --set model.kv_heads=2 >row.txt
grep -q '^row: llama-7b, utilisation|measured|||[1-9][0-9]* tokens/s, ' row.txt
grep -q "^figures: rate=[1-9].* layers=3 what='llama-7b'$" row.txt
(
  tool=$emulated
  . "$here/gpu_runs.sh"
  model llama-7b
  most=40000000000
  layers=$(most_layers 32 $most)
  [ "$layers" -ge 1 ]
  [ "$(planned_bytes --set model.layers=$layers)" -le $most ]
  [ "$(planned_bytes --set model.layers=$((layers + 1)))" -gt $most ]
  [ "$(most_layers 2 $most)" = 2 ]
  [ -z "$(most_layers 32 1000)" ]
)
"$here/gpu_offload.sh" "$emulated" $small >row.txt
copies='copies of [0-9.]* ms at [0-9.]* GB/s, the step without [0-9.]* ms'
grep -q "^row: step with activations on the host|measured|[0-9.]*||of the step without; activations at the peak 0.0 MiB, without 0.0; $copies; [0-9.]* of the longer, [0-9]*% hidden$" row.txt
grep -q '^row: gpt2-774m, activations saved|[pf]a[a-z]*|[0-9.-]*|0.47|activations at the peak 0.0 MiB, ' row.txt
grep -q "^row: gpt2-774m, step with them on host|[a-z ]*|[0-9.]*||of the step without; .*; $copies$" row.txt
grep -q '^row: gpt2-774m, copies hidden|[a-z ]*|[0-9.]*|[0-9.]*|of [0-9.]* ms beside compute$' row.txt
grep -q '^row: step with states on the host|measured|[0-9.]*||of the step without; optimizer state at the peak 0.0 MiB, without 0.4' row.txt
tail -n 1 row.txt | grep -q '^losses are equal$'
# A tenth rank would share the first one's GPU: refused by the tool, or else by NCCL.
if "$emulated" train run.toml --set run.device=cuda --set mesh.shard=10 >out.txt 2>err.txt; then exit 1; fi
grep -q 'this host has 10 of them, and ranks 0 and 9 would share the GPU at 0000:00:00.0' err.txt
if NCCL_HOSTID=1 "$emulated" train run.toml --set run.device=cuda --set mesh.shard=10 >out.txt 2>err.txt; then exit 1; fi
grep -q 'rank [0-9], GPU [0-8]: connecting GPUs failed: .*Duplicate GPU' err.txt
# Losses of tokens come from the GPUs as from the CPU, for text and for choices.
golden=$here/golden/evaluate_gpt2
"$tool" evaluate "$golden/text.txt" "$golden/lines.jsonl" --weights "$golden" | tail -n 3 >cpu_text.txt
"$tool" evaluate --choices "$golden/questions.jsonl" --weights "$golden" | tail -n 2 >cpu_choices.txt
for ranks in 1 2; do
  "$emulated" evaluate "$golden/text.txt" "$golden/lines.jsonl" --weights "$golden" --ranks $ranks \
    --set run.device=cuda | tail -n 3 | diff - cpu_text.txt
  "$emulated" evaluate --choices "$golden/questions.jsonl" --weights "$golden" --ranks $ranks \
    --set run.device=cuda | tail -n 2 | diff - cpu_choices.txt
done
