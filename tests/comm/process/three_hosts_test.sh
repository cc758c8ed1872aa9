#!/usr/bin/env bash
# three_hosts_test.sh TOOL CONTRACT: ranks on three hosts that are namespaces of one machine, each with a network and
# processes of its own, joined by a bridge. Runs the contract, and trains: to the bits of threads. 77, with a word, where
# this machine allows no such hosts.
set -euo pipefail
tool=$1 contract=$2
if [ "${3:-}" != inside ]; then
  for needed in unshare nsenter ip; do
    command -v "$needed" >/dev/null || { echo "skipped: there is no $needed on this machine"; exit 77; }
  done
  new=(unshare --net --mount --pid --fork --kill-child --mount-proc)
  if [ "$(id -u)" -ne 0 ]; then new+=(--map-root-user); fi
  "${new[@]}" sh -c 'ip link add bridge0 type bridge && ip link add cable0 type veth peer name cable1' 2>/dev/null ||
    { echo "skipped: this machine refuses namespaces, or bridges in them"; exit 77; }
  exec "${new[@]}" "$0" "$tool" "$contract" inside
fi

# Inside: all of it goes with the first process of these namespaces.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() { echo "$*"; tail -n 20 "$folder"/*.txt; exit 1; }

ip link add bridge0 type bridge
ip link set bridge0 up
hosts=()
for host in 0 1 2; do
  unshare --net --pid --mount --fork --kill-child --mount-proc sleep 600 &
  outer=$!
  until hosts[host]=$(pgrep --parent "$outer" sleep); do sleep 0.01; done
  until [ "$(readlink "/proc/${hosts[host]}/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
  ip link add "cable$host" type veth peer name eth0 netns "${hosts[host]}"
  ip link set "cable$host" master bridge0 up
  nsenter --target "${hosts[host]}" --net sh -c \
    "ip link set lo up && ip address add 10.77.2.1$host/24 dev eth0 && ip link set eth0 up"
done

# on_all_hosts RANKS COMMAND...: so many ranks on each; sets `status`, the highest of the launchers'
on_all_hosts() {
  local ranks=$1 launchers=() one
  shift
  for host in 0 1 2; do
    nsenter --target "${hosts[host]}" --net --mount --pid --wd="$PWD" "$tool" launch -n "$ranks" --hosts 3 --host "$host" \
      --at 10.77.2.10:29400 --grace 1 -- "$@" >"$folder/out$host.txt" 2>"$folder/err$host.txt" &
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
