#!/usr/bin/env bash
# Compares the time to compile a source that includes only tessera/engine.h with that of one that includes the standard
# headers which it includes, directly or not. Prints medians of pairs, in a table; builds nothing.
#   scripts/header_cost.sh [PAIRS]      21 pairs of compilations where not given; CXX names the compiler
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
pairs=${1:-21}
is_count "$pairs" || refuse "PAIRS is '$pairs'; a whole number from 1 is needed"
[ $# -le 1 ] || refuse "'$2' is one argument too many"

cxx=${CXX:-g++}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
echo '#include <tessera/engine.h>' >"$folder/engine.cpp"
"$cxx" -std=c++20 -Iinclude -MM -MT x "$folder/engine.cpp" | tr -s ' \\' '\n' | grep '^include/' >"$folder/ours.txt"
xargs grep -h '^#include <' <"$folder/ours.txt" | sort -u >"$folder/standard.cpp"

# seconds SOURCE [ARGUMENT...]: of the processor, one compilation.
seconds() {
  local TIMEFORMAT='%U %S' source=$1
  shift
  { time "$cxx" -std=c++20 -Iinclude "$@" "$folder/$source" 2>&3; } 3>&2 2>&1 | awk '{ print $1 + $2 }'
}
median() { sort -g | awk '{ value[NR] = $1 } END { print (value[int((NR + 1) / 2)] + value[int(NR / 2) + 1]) / 2 }'; }

echo "$("$cxx" --version | head -n 1), $pairs pairs; $(wc -l <"$folder/ours.txt") headers of Tessera, and the standard ones"
sed 's/#include //' "$folder/standard.cpp" | paste -s -d ' ' | fold -s -w 118
echo
echo '| command | standard headers, ms | tessera/engine.h, ms | ratio |'
echo '|---|---|---|---|'
for arguments in '-fsyntax-only' "-O2 -c -o $folder/object.o"; do
  for ((pair = 0; pair <= pairs; ++pair)); do
    # shellcheck disable=SC2086
    row="$(seconds standard.cpp $arguments) $(seconds engine.cpp $arguments)"
    [ "$pair" -eq 0 ] || echo "$row"  # the first fills the file cache
  done >"$folder/pairs.txt"
  printf '| `%s` | %.0f | %.0f | %.3f |\n' "${arguments%% -o *}" \
    "$(awk '{ print 1000 * $1 }' "$folder/pairs.txt" | median)" \
    "$(awk '{ print 1000 * $2 }' "$folder/pairs.txt" | median)" \
    "$(awk '{ print $2 / $1 }' "$folder/pairs.txt" | median)"
done
