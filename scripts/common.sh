# Sourced first by the scripts beside it: their help, the checkout's root, where they run, and configuring and building a
# preset quietly. Needs no more than a bare system has: scripts/install_packages.sh sources it, too.
caller=$PWD
script=$(readlink -m "$0")
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

# The comment that the script begins with is its help.
usage() { sed '1d; /^#/!Q; s/^# \{0,1\}//' "$script"; }
# refuse WORDS...: what is wrong with the arguments, and the help.
refuse() {
  { echo "$(basename "$script" .sh): $*"; usage; } >&2
  exit 2
}
# path_of FILE: as the caller means it, whose folder is another.
path_of() { case $1 in /*) printf '%s\n' "$1" ;; *) printf '%s\n' "$caller/$1" ;; esac; }
is_count() { [[ $1 =~ ^[1-9][0-9]{0,8}$ ]]; }

case ${1:-} in -h | --help) usage; exit 0 ;; esac

# Two jobs need at least 4 GiB: no more jobs than memory has room for.
jobs=$(nproc)
memory_jobs=$(awk '/^MemAvailable:/ { print int($2 / 2097152) }' /proc/meminfo)
if [ "$memory_jobs" -lt "$jobs" ]; then jobs=$((memory_jobs > 1 ? memory_jobs : 1)); fi

say() { printf '== %s\n' "$*"; }

# configure PRESET [CMAKE_ARGUMENT...]
configure() {
  local preset=$1 log
  shift
  mkdir -p build
  log=build/configure-$preset.log
  local launcher=()
  if command -v ccache >/dev/null; then  # which finds more without compiled headers
    launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DTESSERA_PRECOMPILE=OFF)
  fi
  say "configuring $preset"
  if ! cmake --preset "$preset" "${launcher[@]}" "$@" >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    echo "configuring failed; all of it is in $log" >&2
    return 1
  fi
}

# build PRESET [TARGET...]: all targets where none is named. Prints the compiler's words only where it fails.
build() {
  local preset=$1 log
  shift
  log=build/build-$preset.log
  say "building $preset with $jobs jobs${1:+: $*}"
  if ! cmake --build --preset "$preset" --parallel "$jobs" ${1:+--target "$@"} >"$log" 2>&1; then
    grep -A 20 -m 3 -E 'FAILED:|error:' "$log" >&2 || tail -n 40 "$log" >&2
    echo "building failed; all of it is in $log" >&2
    return 1
  fi
}
