#!/usr/bin/env bash
# Builds and runs tests under sanitizers.
#   scripts/sanitize.sh                            every test that can run there, under both presets
#   scripts/sanitize.sh asan                       under AddressSanitizer and UndefinedBehaviorSanitizer
#   scripts/sanitize.sh tsan -R '^comm_test$'      under ThreadSanitizer, what ctest selects: builds only these
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# Sanitizers need address layouts that newer kernels randomise too far for this compiler.
run_tests() { setarch --addr-no-randomize ctest --preset "$@" --parallel 2; }

export TSAN_OPTIONS="suppressions=$root/tests/tsan.supp ${TSAN_OPTIONS:-}"

# sanitize PRESET [CTEST_ARGUMENT...]
sanitize() {
  local preset=$1 targets=()
  shift
  configure "$preset" -DTESSERA_BENCHMARKS=OFF -DTESSERA_EXAMPLES=OFF
  if [ $# -gt 0 ]; then  # a test program and its target have one name; a shard or a world has a number behind it
    mapfile -t targets < <(ctest --preset "$preset" -N "$@" 2>/dev/null |
      sed -n 's/^ *Test *#[0-9]*: //p' | sed 's/_[0-9]*$//' | sort -u)
    [ ${#targets[@]} -gt 0 ] || { echo "no test is selected by: $*" >&2; return 1; }
  fi
  build "$preset" "${targets[@]}"
  say "testing $preset"
  # MPI libraries are not built for ThreadSanitizer, which would call all that their processes share a race.
  if [ "$preset" = tsan ] && [ $# -eq 0 ]; then set -- -LE mpi; fi
  run_tests "$preset" "$@"
}

if [ $# -gt 0 ]; then
  sanitize "$@"
else
  sanitize asan
  sanitize tsan
fi
