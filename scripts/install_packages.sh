#!/usr/bin/env bash
# Installs the Debian packages that Tessera is built from, if any is missing. Needs root or sudo only then.
#   scripts/install_packages.sh [PACKAGE...]      more of them, such as libtorch-dev for examples/embed_libtorch
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

for package in "$@"; do
  case $package in -*) refuse "'$package' is no package" ;; esac
done
packages=(
  g++ cmake ninja-build pkg-config git clang-format
  libdnnl-dev libhwy-dev libcli11-dev libtomlplusplus-dev nlohmann-json3-dev
  libpcre2-dev libicu-dev zlib1g-dev libzstd-dev libsimdjson-dev libasio-dev libfmt-dev libxxhash-dev libgtest-dev libgmock-dev libbenchmark-dev liburing-dev
  libopenmpi-dev openmpi-bin libucx-dev iproute2
  "$@"
)

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "install: not a Debian system; these packages, under its own names, must be there: ${packages[*]}" >&2
  exit 0
fi

missing=()
for package in "${packages[@]}"; do
  state=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$state" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "install: missing packages: ${missing[*]}" >&2
    echo "install: neither root nor sudo here; as root, run: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

echo "install: ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 "$@" </dev/null >"$log" 2>&1; }
# A stale package list is only a problem where the packages cannot be had with it.
apt update || echo "install: apt-get update failed, going on with the package lists of this machine" >&2
if ! apt install --yes --no-install-recommends "${missing[@]}"; then
  tail -n 20 "$log" >&2
  echo "install: apt-get could not install: ${missing[*]}" >&2
  exit 1
fi
