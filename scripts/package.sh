#!/usr/bin/env bash
# Builds the Debian packages tessera, the tool, and libtessera-dev, the library, in build/package.
#   scripts/package.sh              only builds them
#   scripts/package.sh --check      also installs them in a bare Debian of the same release, and builds and runs programs
#                                   in C and C++ there; needs root and the network
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
check=
case ${1:-} in
  '') ;;
  --check) check=yes ;;
  *) refuse "unknown argument '$1'" ;;
esac
[ $# -le 1 ] || refuse "'$2' is one argument too many"

scripts/install_packages.sh ${check:+mmdebstrap}
configure package
build package
rm -f build/package/*.deb
(cd build/package && cpack -G DEB >cpack.log 2>&1) || { tail -n 20 build/package/cpack.log >&2; exit 1; }
ls build/package/*.deb
[ -n "$check" ] || exit 0

release=$(. /etc/os-release && echo "$VERSION_CODENAME")
say "installing them in a bare Debian, $release"
export consumers=$root/tests/install packages=$root/build/package examples=$root/examples
log=build/package/check.log
if ! mmdebstrap --variant=minbase --include=ca-certificates \
  --customize-hook='mkdir -p "$1"/consumers && cp "$packages"/*.deb "$consumers"/in_a_bare_system.sh "$1"/consumers' \
  --customize-hook='cp -r "$consumers"/consumer "$examples" "$1"/consumers' \
  --customize-hook='chroot "$1" sh /consumers/in_a_bare_system.sh' \
  "$release" /dev/null >"$log" 2>&1; then
  tail -n 40 "$log" >&2
  echo "the check failed; all of it is in $log" >&2
  exit 1
fi
grep '^== ' "$log"
