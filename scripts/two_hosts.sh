#!/usr/bin/env bash
# Starts an MPI program on two hosts that are one: Linux namespaces give each a name, a network, processes and shared
# memory of its own, and a virtual cable joins them. Files are the same on both.
#   scripts/two_hosts.sh RANKS PROGRAM [ARGUMENT...]      ranks alternate between the hosts
# The status is the launcher's; 77 where this machine refuses namespaces or the launcher is not Open MPI's: MPICH over
# UCX does not find these hosts' network. Nothing stays behind, however this ends: all of it lives in the first host's
# namespaces, which go with their first process, and that with this one.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$caller"  # which PROGRAM is relative to

launcher=${MPIEXEC:-mpirun}
new_host=(unshare --net --uts --ipc --mount --pid --fork --kill-child --mount-proc)

skip() {
  echo "skipped: $*"
  exit 77
}

# be_host NUMBER, by the first process of new namespaces
be_host() {
  hostname "host$1"
  mount -t tmpfs none /dev/shm
  ip link set lo up
  ip address add "10.77.0.$1/24" dev "cable$1"
  ip link set "cable$1" up
}

first_host() {
  ip link add cable1 type veth peer name cable2
  be_host 1
  printf '%s\n' '127.0.0.1 localhost' '10.77.0.1 host1' '10.77.0.2 host2' >/dev/shm/hosts
  mount --bind /dev/shm/hosts /etc/hosts
  coproc second { exec "${new_host[@]}" "$script" --second-host; }
  export TESSERA_SECOND_HOST=$!
  read -r <&"${second[0]}"
  ip link set cable2 netns "$TESSERA_SECOND_HOST"
  echo plugged in >&"${second[1]}"
  read -r <&"${second[0]}"
  launch "$@"
}

second_host() {
  echo made
  read -r
  be_host 2
  echo ready
  read -r || true  # the first host ends
}

# launch RANKS PROGRAM [ARGUMENT...]
launch() {
  local ranks=$1 slots=$((($1 + 1) / 2)) status=0
  shift
  "$launcher" --allow-run-as-root --bind-to none --mca plm_rsh_agent "$script" --mca orte_tmpdir_base /dev/shm \
    --mca btl_vader_single_copy_mechanism none --host "host1:$slots,host2:$slots" --map-by node \
    -x TESSERA_TEST_HOSTS=2 -n "$ranks" "$@" || status=$?
  exit $status
}

# on_second_host [-OPTION...] HOST COMMAND...: what launchers call instead of ssh
on_second_host() {
  while [[ $1 == -* ]]; do shift; done
  shift
  exec nsenter --target "$TESSERA_SECOND_HOST" --net --uts --ipc --mount --wd="$PWD" \
    --pid="/proc/$TESSERA_SECOND_HOST/ns/pid_for_children" sh -c "$*"
}

if [ -n "${TESSERA_SECOND_HOST:-}" ]; then on_second_host "$@"; fi
case ${1:-} in
  --first-host) first_host "${@:2}" ;;
  --second-host) second_host ;;
  *)
    is_count "${1:-}" || refuse "RANKS is '${1:-}'; a whole number from 1 is needed"
    [ $# -gt 1 ] || refuse "no PROGRAM is named"
    for tool in unshare nsenter setpriv ip "$launcher"; do
      command -v "$tool" >/dev/null || skip "there is no $tool on this machine"
    done
    case $("$launcher" --version 2>&1) in
      *"Open MPI"* | *OpenRTE*) ;;
      *) skip "$launcher is not Open MPI's" ;;
    esac
    if [ "$(id -u)" -ne 0 ]; then new_host+=(--map-root-user); fi
    try='hostname host1 && mount -t tmpfs none /dev/shm && ip link add cable1 type veth peer name cable2'
    "${new_host[@]}" sh -c "$try" 2>/dev/null || skip "this machine refuses namespaces"
    trap 'exit 143' INT TERM
    trap 'kill -KILL $! 2>/dev/null || true' EXIT
    setpriv --pdeathsig KILL "${new_host[@]}" "$script" --first-host "$@" <&0 &
    wait $! ;;
esac
