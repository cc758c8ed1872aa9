# three_hosts.sh, which a test sources first: starts the test anew on a machine of its own that has three hosts. These are
# namespaces, each with a network and processes of its own, joined by a bridge; files are the same on all. 77, with a word,
# where this machine allows none. Then there are `folder`, an empty one, and:
#   on_host HOST COMMAND...      runs a command on host 0, 1 or 2; host H has the address 10.77.1.1H and the cable cableH
#   fail WORDS                   ends the test, and shows the ends of the folder's *.txt
# All of it goes with the test.
set -euo pipefail
if [ -z "${TESSERA_THREE_HOSTS:-}" ]; then
  for needed in unshare nsenter ip; do
    command -v "$needed" >/dev/null || { echo "skipped: there is no $needed on this machine"; exit 77; }
  done
  new=(unshare --net --mount --pid --fork --kill-child --mount-proc)
  if [ "$(id -u)" -ne 0 ]; then new+=(--map-root-user); fi
  "${new[@]}" sh -c 'ip link add bridge0 type bridge && ip link add cable0 type veth peer name cable1' 2>/dev/null ||
    { echo "skipped: this machine refuses namespaces, or bridges in them"; exit 77; }
  TESSERA_THREE_HOSTS=1 exec "${new[@]}" "$0" "$@"
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() { echo "$*"; tail -n 20 "$folder"/*.txt; exit 1; }

ip link add bridge0 type bridge
ip link set bridge0 up
hosts=()  # the first process of each
on_host() {
  local host=$1
  shift
  nsenter --target "${hosts[host]}" --net --mount --pid --wd="$PWD" "$@"
}
for host in 0 1 2; do
  unshare --net --pid --mount --fork --kill-child --mount-proc sleep 600 &
  until hosts[host]=$(pgrep --parent $! sleep); do sleep 0.01; done
  until [ "$(readlink "/proc/${hosts[host]}/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
  ip link add "cable$host" type veth peer name eth0 netns "${hosts[host]}"
  ip link set "cable$host" master bridge0 up
  on_host "$host" sh -c "ip link set lo up && ip address add 10.77.1.1$host/24 dev eth0 && ip link set eth0 up"
done
