#!/usr/bin/env bash
# three_hosts_test.sh TOOL CONTRACT: ranks on three hosts run the contract, and train: to the bits of threads. One that is
# killed is named by all hosts.
source "$(dirname "$0")/../../launch/three_hosts.sh"
tool=$1 contract=$2

# on_all_hosts RANKS COMMAND...: so many ranks on each; sets `status`, the highest of the launchers'
on_all_hosts() {
  local ranks=$1 launchers=() one
  shift
  for host in 0 1 2; do
    on_host "$host" "$tool" launch -n "$ranks" --hosts 3 --host "$host" --at 10.77.1.10:29400 --grace 1 -- "$@" \
      >"$folder/out$host.txt" 2>"$folder/err$host.txt" &
    launchers+=($!)
  done
  status=0
  for launcher in "${launchers[@]}"; do
    one=0
    wait "$launcher" || one=$?
    [ "$one" -le "$status" ] || status=$one
  done
}

on_all_hosts 1 "$contract" '--gtest_filter=Process/Communicator*shared*'
[ "$status" -eq 0 ] || fail "the contract ended with status $status"
grep -q 'PASSED' "$folder/out0.txt" || fail "the contract has not run"

seq -f 'line %g of a text that is trained on' 600 >"$folder/text"
cat >"$folder/run.toml" <<END
model = {layers = 2, heads = 2, channels = 24, context = 16, dropout = 0.1, attention_dropout = 0.1}
mesh = {shard = 6}
strategy = {stage = 3}
schedule = {kind = "constant"}
data = {train = "$folder/text"}
run = {steps = 6, sequences = 2, length = 16, microbatches = 2, deadline = 20, checkpoint = "checkpoints"}
END
mkdir "$folder/threads" "$folder/processes"
(cd "$folder/threads" && "$tool" train ../run.toml) >"$folder/threads.txt" || fail "threads do not train"
cd "$folder/processes"
on_all_hosts 2 "$tool" train ../run.toml
[ "$status" -eq 0 ] || fail "training ended with status $status"
grep -q '6 ranks as processes' "$folder/out0.txt" || fail "they are not six processes"
grep -q 'messages' "$folder/out0.txt" || fail "hosts do not exchange messages"
diff -r "$folder/threads/checkpoints" checkpoints || fail "other bits than threads"

on_all_hosts 2 sh -c '[ $RANK != 3 ] || { sleep 2; kill -9 $$; } & exec "$0" "$@"' "$tool" train ../run.toml \
  --set run.steps=100000 --set run.checkpoint= --set run.deadline=5
[ "$status" -eq 137 ] || fail "a killed rank ends with status $status"
for host in 0 1 2; do
  grep -q 'rank 3 on host 1 (pid [0-9]*) was killed by signal 9 (SIGKILL)' "$folder/err$host.txt" ||
    fail "host $host does not name the rank that was killed"
done
pgrep -f 'tessera train' >/dev/null && fail "ranks are left"
echo "three hosts: the contract, the bits of threads, a rank killed"
