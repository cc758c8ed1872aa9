#!/usr/bin/env bash
# three_hosts_test.sh TOOL RANK_PROGRAM: launches on three hosts; also when a cable is pulled, which no connection tells of.
source "$(dirname "$0")/three_hosts.sh"
tool=$1 program=$2

# start HOST COMMAND...
start() {
  local host=$1
  shift
  on_host "$host" "$tool" launch -n 2 --hosts 3 --host "$host" --at 10.77.1.10:29400 \
    --heartbeat 1 --grace 1 -- "$@" >"$folder/out$host.txt" 2>"$folder/err$host.txt" &
  launchers[host]=$!
}
# ends HOST STATUS WORDS: its status, and what it says
ends() {
  local status=0
  wait "${launchers[$1]}" || status=$?
  [ "$status" -eq "$2" ] || fail "host $1 ended with status $status, not $2"
  grep -qF "$3" "$folder/err$1.txt" || [ -z "$3" ] || fail "host $1 does not say: $3"
}
launchers=()
ranks_left() { pgrep -f 'sleep 7[7]' >/dev/null; }

for host in 2 1 0; do start $host "$program" sum; done
for host in 0 1 2; do ends $host 0 ""; done
if "$program" sum | grep -q sum; then  # a build with asio
  grep -qx 'sum 21 of 6' "$folder/out0.txt" || fail "rank 0 has not met all six ranks"
fi

for host in 0 1 2; do start $host sh -c '[ $RANK = 4 ] && { sleep 0.5; kill -9 $$; }; exec sleep 77'; done
for host in 0 1 2; do ends $host 137 "rank 4 on host 2 (pid "; done
ranks_left && fail "ranks are left"

for host in 0 1 2; do start $host sleep 77; done
sleep 1
[ "$(pgrep -fc '^sleep 7[7]')" -eq 6 ] || fail "not all six ranks run"
ip link set cable1 down
ends 0 1 "host 1 (10.77.1.11) is lost: nothing was heard of it for 1 s"
ends 1 1 "host 0 is lost: nothing was heard of it for 1 s"
ends 2 1 "host 1 (10.77.1.11) is lost: nothing was heard of it for 1 s"
ranks_left && fail "ranks are left"
echo "three hosts: all well, a rank killed, a cable pulled"
