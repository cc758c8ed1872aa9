#!/usr/bin/env bash
# embed_c_gpt_test.sh FOLDER SOURCES [MPI]: the two GPTs in C. What gpt_sharded.c adds to gpt_plain.c; that its losses are
# the plain program's, and the same bits at every stage and by every launcher. With MPI also under mpirun.
set -euo pipefail
programs=$(realpath "$1")
sources=$(realpath "$2")
mpi=${3:-}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
fail() { echo "$*"; exit 1; }

# Lines that are added, without comments and blank ones.
added=$(diff "$sources/examples/embed_c/gpt_plain.c" "$sources/examples/embed_c/gpt_sharded.c" | sed -n 's/^> //p' |
  sed -e ':all' -e 'N' -e '$!b all' -e 's|/\*[^*]*\*/||g' | grep -c '[^[:space:]]') || true
[ "$added" -ge 20 ] && [ "$added" -le 45 ] || fail "gpt_sharded.c adds $added lines to gpt_plain.c, and 45 are allowed"

text=$sources/docs/architecture.md
"$programs/gpt_plain" "$text" 20 >plain
[ "$(wc -l <plain)" = 20 ] || fail "gpt_plain made $(wc -l <plain) steps"

# same NAME: its losses are within 1e-6 of the plain program's.
same() {
  paste plain "$1" | awk -v name="$1" '
    { difference = $4 - $8; if (difference < 0) difference = -difference; if (!(difference <= 1e-6)) bad = 1 }
    NF != 8 || $2 != $6 { bad = 1 }
    END { if (NR != 20 || bad) { print name " has other losses than gpt_plain"; exit 1 } }'
}
for ranks in 1 2; do
  for stage in 0 1 2 3; do
    "$programs/gpt_sharded" "$text" 20 $stage $ranks >stage$stage.$ranks 2>said
    grep -qE "^($ranks ranks on threads|1 rank on a thread) of this process$" said || fail "it does not say how ranks run: $(cat said)"
    same stage$stage.$ranks
    cmp stage0.$ranks stage$stage.$ranks || fail "stage $stage has other bits than stage 0 on $ranks ranks"
  done
done

"$sources/tests/comm/launch.sh" 2 "$programs/gpt_sharded" "$text" 20 3 >by_variables
grep -q "^2 ranks as processes, by RANK and WORLD_SIZE: they share memory$" by_variables ||
  fail "a launcher's variables: $(head -n 3 by_variables)"
grep '^step' by_variables | cmp - stage3.2 || fail "by a launcher's variables it has other bits"
if [ "$mpi" = MPI ]; then
  "$sources/tests/comm/mpi/launch.sh" 2 "$programs/gpt_sharded" "$text" 20 2 >by_mpi 2>said ||
    { [ $? = 77 ] && exit 0; fail "mpirun: $(cat said)"; }
  grep -q "^2 ranks as processes of MPI's launcher$" said || fail "mpirun: $(cat said)"
  cmp by_mpi stage2.2 || fail "under mpirun it has other bits"
fi

# A mistake ends all ranks with a message, in time.
status=0
timeout 20 "$programs/gpt_sharded" "$text" 20 0 3 >out 2>said || status=$?
[ $status = 100 ] && grep -q "^3 ranks do not divide a batch of 8$" said || fail "3 ranks: $status, $(cat said)"
