#!/usr/bin/env bash
# memory_footprint_test.sh PROGRAM: what the benchmark refuses, and that what it writes is there whole or not at all.
set -euo pipefail
program=$(realpath "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/files"
cd "$folder/files"
fail() { echo "$*:"; cat ../out.txt ../err.txt; exit 1; }
# run STATUS [ARGUMENT...]: of one small row.
run() {
  local expected=$1 status=0
  shift
  "$program" "$@" >../out.txt 2>../err.txt || status=$?
  [ $status = "$expected" ] || fail "exit $status, expected $expected, of $*"
}
# refused STATUS WORDS [ARGUMENT...]: before anything is printed.
refused() {
  local expected=$1 words=$2
  shift 2
  run "$expected" "$@"
  grep -q "^memory_footprint: .*$words" ../err.txt || fail "$* is not refused for '$words'"
  [ ! -s ../out.txt ] || fail "$* prints all the same"
}
row=(--models gpt-23m --ranks 2 --length 64)

refused 2 'parameters on the host need stage 3, where they are sharded; --stages has no 3' \
  "${row[@]}" --stages 0,1 --offload-parameters device,host
run 0 "${row[@]}" --stages 0,3 --offload-parameters device,host
[ "$(grep -c '^gpt-23m .* device \+device *device ' ../out.txt)" = 2 ] || fail 'the rows of parameters on the device'
refused 2 '--formula excludes --csv' --formula --csv a.csv
refused 2 '--models excludes --formula' --formula "${row[@]}"
refused 2 "'a' is that of --json, too" "${row[@]}" --csv a --json a

# A row that was not measured is not as planned, however small it is.
run 1 "${row[@]}" --stages 3 --check
grep -q '^gpt-23m on 2 ranks .*: nothing was measured (see --measure); predicted 0\.[0-9]* GiB$' ../out.txt || fail '--check'

# A path that cannot be written is refused first, and leaves nothing of the other.
echo kept >a.csv
refused 1 "cannot write 'none/a.json': No such file or directory" "${row[@]}" --csv a.csv --json none/a.json
refused 1 "cannot write '.': Is a directory" "${row[@]}" --csv a.csv --json .
[ "$(ls -A) $(cat a.csv)" = 'a.csv kept' ] || fail "left behind: $(ls -A)"
# A run that fails leaves nothing either: its file on disk has no place.
refused 1 'the run of gpt-23m on 2 ranks at stage 3 with states on the disk, .* failed' "${row[@]}" --stages 3 \
  --offload-states disk --offload-directory none --measure 4 --csv a.csv --json a.json
[ "$(ls -A) $(cat a.csv)" = 'a.csv kept' ] || fail "left behind: $(ls -A)"

run 0 "${row[@]}" --stages 3 --csv a.csv --json a.json
[ "$(echo *) $(wc -l <a.csv)" = 'a.csv a.json 2' ] || fail "written: $(ls -A)"
grep -q '"model": "gpt-23m"' a.json || fail 'the JSON'
# What a rename would replace is written in place.
ln -s there.csv link.csv
run 0 "${row[@]}" --stages 3 --csv link.csv
[ -L link.csv ] && [ "$(wc -l <there.csv)" = 2 ] || fail 'rows through a link'
mkfifo pipe
cat pipe >read.csv &
run 0 "${row[@]}" --stages 3 --csv pipe
wait
[ -p pipe ] && [ "$(wc -l <read.csv)" = 2 ] || fail 'rows into a pipe'
