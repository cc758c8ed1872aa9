# Sourced by the scripts beside it: the checkout's root, and configuring and building a preset quietly.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

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
