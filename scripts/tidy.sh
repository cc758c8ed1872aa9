#!/usr/bin/env bash
# Runs clang-tidy with the project's .clang-tidy over C++ sources.
#   scripts/tidy.sh [PATH...]      files or folders; by default src kernels optim. Exits 1 where it finds something
#   TESSERA_TIDY_BUILD=build/debug scripts/tidy.sh src/layout      uses that build's compile_commands.json
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

paths=()
for path in "$@"; do
  [ -e "$(path_of "$path")" ] || refuse "there is no file or folder '$path'"
  paths+=("$(path_of "$path")")
done

command -v clang-tidy >/dev/null || { echo "tidy: clang-tidy is missing; apt-get install clang-tidy" >&2; exit 1; }
build_folder=${TESSERA_TIDY_BUILD:-build/tidy}
if [ "$build_folder" = build/tidy ]; then  # also where it is there: sources may have been added
  configure release -B build/tidy -DTESSERA_PRECOMPILE=OFF  # clang cannot read what GCC precompiled
elif [ ! -f "$build_folder/compile_commands.json" ]; then
  echo "tidy: no compile_commands.json in $build_folder" >&2
  exit 1
fi

[ $# -gt 0 ] || paths=(src kernels optim)
# Only what git tracks, and only what the build compiles.
mapfile -t files < <(git ls-files -- "${paths[@]}" | grep '\.cpp$' | while read -r file; do
  grep -qF "/$file\"" "$build_folder/compile_commands.json" && echo "$file"
done)
[ ${#files[@]} -gt 0 ] || { echo "tidy: no compiled C++ source in: ${paths[*]}" >&2; exit 1; }
say "clang-tidy over ${#files[@]} files"
# GCC's own flags mean nothing to clang. One file at a time per job keeps each file's report in one piece.
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$jobs" clang-tidy -p "$build_folder" --quiet \
  --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-unused-command-line-argument 2>/dev/null
