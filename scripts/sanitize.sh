#!/usr/bin/env bash
# Builds and runs tests under sanitizers.
#   scripts/sanitize.sh                            every test that can run there, under both presets
#   scripts/sanitize.sh asan                       under AddressSanitizer and UndefinedBehaviorSanitizer
#   scripts/sanitize.sh tsan -R '^comm_test$'      under ThreadSanitizer, what ctest selects: builds only these, and does
#                                                  not look through the tests themselves for undefined behaviour
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case ${1:-} in
  '' | asan | tsan) ;;
  *) refuse "there is no preset '$1' of sanitizers; there are asan and tsan" ;;
esac

# Sanitizers need address layouts that newer kernels randomise too far for this compiler.
run_tests() { setarch --addr-no-randomize ctest --preset "$@" --parallel 2; }

# sanitize PRESET [CTEST_ARGUMENT...]
sanitize() {
  local preset=$1 target targets=()
  shift
  configure "$preset" -DTESSERA_BENCHMARKS=OFF -DTESSERA_EXAMPLES=OFF -DTESSERA_SANITIZE_TESTS="$([ $# -gt 0 ] && echo OFF || echo ON)"
  if [ $# -gt 0 ]; then  # a test program and its target have one name; a shard or a world has a number behind it
    mapfile -t targets < <(ctest --preset "$preset" -N "$@" 2>/dev/null |
      sed -n 's/^ *Test *#[0-9]*: //p' | sed 's/_[0-9]*$//' | sort -u)
    [ ${#targets[@]} -gt 0 ] || { echo "no test is selected by: $*" >&2; return 1; }
    for target in "${targets[@]}"; do  # a script that is a test is no target, and may start any program
      if ! ninja -C "build/$preset" -t query "$target" >/dev/null 2>&1; then targets=(); break; fi
    done
  fi
  build "$preset" "${targets[@]}"
  say "testing $preset"
  if [ "$preset" = tsan ] && [ $# -eq 0 ]; then
    export TESSERA_SAMPLE="${TESSERA_SAMPLE:-7}"
    echo "of the matrices one cell in $TESSERA_SAMPLE, for their time"
    echo "left out by themselves: OpenMP's teams (its library hides from ThreadSanitizer what orders them), and what"
    echo "  measures resident memory (shadow memory counts as resident)"
  fi
  run_tests "$preset" "$@"
}

if [ $# -gt 0 ]; then
  sanitize "$@"
else
  sanitize asan
  sanitize tsan
fi
