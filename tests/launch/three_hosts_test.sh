#!/usr/bin/env bash
# three_hosts_test.sh TOOL RANK_PROGRAM: launches on three hosts that are network namespaces of one machine, joined by a
# bridge; also when a cable is pulled, which no connection tells of. 77, with a word, where this machine allows none.
set -euo pipefail
tool=$1 program=$2
if [ "${3:-}" != inside ]; then
  for needed in unshare nsenter ip; do
    command -v "$needed" >/dev/null || { echo "skipped: there is no $needed on this machine"; exit 77; }
  done
  new=(unshare --net --mount --pid --fork --kill-child --mount-proc)
  if [ "$(id -u)" -ne 0 ]; then new+=(--map-root-user); fi
  "${new[@]}" sh -c 'ip link add bridge0 type bridge && ip link add cable0 type veth peer name cable1' 2>/dev/null ||
    { echo "skipped: this machine refuses namespaces, or bridges in them"; exit 77; }
  exec "${new[@]}" "$0" "$tool" "$program" inside
fi

# Inside: all of it goes with the first process of these namespaces.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() { echo "$*"; tail -n 20 "$folder"/*.txt; exit 1; }

ip link add bridge0 type bridge
ip link set bridge0 up
hosts=()
for host in 0 1 2; do
  unshare --net sleep 600 &
  hosts+=($!)
  until [ "$(readlink "/proc/${hosts[host]}/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
  ip link add "cable$host" type veth peer name eth0 netns "${hosts[host]}"
  ip link set "cable$host" master bridge0 up
  nsenter --target "${hosts[host]}" --net sh -c \
    "ip link set lo up && ip address add 10.77.1.1$host/24 dev eth0 && ip link set eth0 up"
done

# start HOST COMMAND...
start() {
  local host=$1
  shift
  nsenter --target "${hosts[host]}" --net "$tool" launch -n 2 --hosts 3 --host "$host" --at 10.77.1.10:29400 \
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
