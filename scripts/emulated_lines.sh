#!/usr/bin/env bash
# Which lines of the CUDA backend (kernels/cuda, src/device/cuda_*, src/comm/nccl) no test of the emulation runs:
#   scripts/emulated_lines.sh        builds with gcov's counters in build/coverage, runs the tests, lists the lines
#   scripts/emulated_lines.sh list   lists them again
# Takes some 25 minutes on two cores. Needs gcov, which comes with GCC.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
case ${1:-} in '' | list) ;; *) refuse "'$1' is no command; there is list" ;; esac

build=build/coverage
if [ "${1:-}" != list ]; then
  scripts/install_packages.sh
  configure release -B "$build" -DTESSERA_PRECOMPILE=OFF -DTESSERA_EXAMPLES=OFF -DTESSERA_WERROR=OFF \
    -DCMAKE_CXX_FLAGS="--coverage -fprofile-update=atomic" -DCMAKE_CXX_FLAGS_RELEASE="-O1 -DNDEBUG" \
    -DCMAKE_EXE_LINKER_FLAGS=--coverage -DCMAKE_SHARED_LINKER_FLAGS=--coverage
  mapfile -t programs < <(ninja -C "$build" -t targets all | sed -n 's/^\(emulated_[a-z0-9_]*\): phony$/\1/p' | sort -u)
  say "building ${#programs[@]} programs"
  ninja -C "$build" "${programs[@]}" tessera_cli >build/build-coverage.log 2>&1 ||
    { grep -A 20 -m 3 -E 'FAILED:|error:' build/build-coverage.log >&2; exit 1; }
  find "$build" -name '*.gcda' -delete
  say "testing"
  ctest --test-dir "$build" --parallel 2 --timeout 1800 -R '^emulated_' --output-on-failure
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
find "$root/$build/tests/emulated_cuda" -name '*.gcda' -path '*emulated_*' -print0 |
  xargs -0 -n 1 gcov --preserve-paths --long-file-names --source-prefix "$root" >/dev/null 2>&1 || true
# A header has a report for each source that includes it: a line is run if one of them says so.
awk -F: -v root="$root/" '
  $2 + 0 == 0 { if ($3 == "Source") { file = $4; while (sub(/^\.\.\//, "", file)); sub(root, "", file) } next }
  file ~ /no_cudnn/ || file !~ /^(kernels\/cuda\/|src\/device\/(cuda_|host_words)|src\/comm\/nccl\/)/ { next }
  { count = $1; gsub(/[ *]/, "", count) }
  count == "-" { next }
  {
    line = file ":" ($2 + 0)
    if (!(line in text)) { lines[file] = lines[file] " " ($2 + 0); all[file]++ }
    text[line] = $0; sub(/^[^:]*:[^:]*:/, "", text[line])
    if (count !~ /^[#=]/) run[line] = 1
  }
  END {
    for (file in all) {
      split(lines[file], numbers, " "); ran = 0
      for (i in numbers) if ((file ":" numbers[i]) in run) ran++
      printf "%s: %d of %d\n", file, ran, all[file] | "sort"
      total += all[file]; totally += ran
      for (i in numbers) {
        line = file ":" numbers[i]
        if (!(line in run)) printf "%s\n", line " " text[line] | "sort -t: -k1,1 -k2,2n >missing"
      }
    }
    close("sort"); close("sort -t: -k1,1 -k2,2n >missing")
    printf "all: %d of %d\n", totally, total
  }' ./*.gcov
echo
cat missing
