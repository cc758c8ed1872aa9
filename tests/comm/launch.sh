#!/usr/bin/env bash
# launch.sh RANKS PROGRAM [ARGUMENT...]: runs so many processes of a program, each a rank, without MPI: RANK,
# WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT. For NCCL each is a host of its own that is reached over the
# loopback interface, so that ranks can share a GPU. Shows what rank 0 prints, and of the others what failed.
set -u
ranks=$1
shift
# Below the ports that the system gives away; each test of a program takes some.
port=${TESSERA_TEST_PORT:-$((20000 + $$ % 40 * 300))}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1 MASTER_PORT=$port
export NCCL_SOCKET_IFNAME=lo NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_IB_DISABLE=1
export NCCL_RAS_ENABLE=0  # a monitor whose port every process of the host would ask for
processes=()
start() { RANK=$rank LOCAL_RANK=$rank NCCL_HOSTID=rank$rank "$@" 2>&1 & }
for ((rank = 0; rank < ranks; ++rank)); do
  # /dev/stdout would be opened anew: what is a file would be written to from its beginning.
  if [ "$rank" -eq 0 ]; then start "$@"; else start "$@" >"$folder/$rank"; fi
  processes+=($!)
done
status=0
for ((rank = 0; rank < ranks; ++rank)); do
  wait "${processes[rank]}" && continue
  status=1
  [ "$rank" -eq 0 ] || { echo "rank $rank failed:"; tail -n 40 "$folder/$rank"; }
done
exit $status
