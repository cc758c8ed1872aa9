# Sourced by gpu_check.sh: the table that it prints and writes, and how a check becomes a row of it. Uses from there `json`,
# the file; `build`, whose folder `logs` has a log for each check; `gpu`, the GPU's name; and left(), the seconds that are
# left.

# One row a check: name, result, seconds, note, and where there is one a ratio and the least that it should be. Results:
#   passed, failed                    bits, accuracy, memory within the plan, what ends with an error
#   measured                          a figure of which nothing is asked
#   as expected, below expectation    a speed beside one that nobody has measured yet: no failure either way
#   skipped                           something else is missing
rows=() failed=0 skipped=0 below=0 failed_logs=() gpu=''
row() {
  local result=$2 note=${4//|//}  # fields are parted by it
  case $result in
    failed) failed=1 ;;
    skipped) skipped=$((skipped + 1)) ;;
    'below expectation') below=$((below + 1)) ;;
    passed | measured | 'as expected') ;;
    *) note="'$result' is no result; $note" result=failed failed=1 ;;
  esac
  rows+=("$1|$result|$3|$note|${5:-}|${6:-}")
  printf '%-40s %-17s %5s s  %-16s %s\n' "$1" "$result" "$3" "${5:+$5${6:+ of $6}}" "$note"
  write_json unfinished
}
log_of() { echo "$build/logs/${1//[^a-z0-9_]/_}.log"; }
# begin NAME LIMIT COMMAND...: starts it, to run within LIMIT and the time that is left; its output goes to a log.
# collect NAME NOTE_COMMAND: waits for it, and makes its row. It did not take place where the note, which is made of the log
# and the exit status, begins with "skipped: ".
declare -A running=() since=()
begin() {
  local name=$1 limit=$2 log time_left
  shift 2
  log=$(log_of "$name") time_left=$(left)
  : >"$log"
  since[$name]=$SECONDS running[$name]=''
  [ "$time_left" -gt 0 ] || return 0
  # A process that a GPU holds up may be deaf to the first signal.
  timeout --kill-after=5 $((limit < time_left ? limit : time_left)) "$@" >"$log" 2>&1 &
  running[$name]=$!
}
collect() {
  local name=$1 note=$2 status=0 log words took
  log=$(log_of "$name")
  if [ -z "${running[$name]}" ]; then row "$name" failed 0 "no time was left"; return 1; fi
  wait "${running[$name]}" || status=$?
  unset "running[$name]"
  took=$((SECONDS - ${since[$name]}))
  words=$($note "$log" $status)
  case $words in 'skipped: '*) row "$name" skipped $took "${words#skipped: }"; return 0 ;; esac
  if [ $status -eq 0 ]; then row "$name" passed $took "$words"; return 0; fi
  case $status in 124 | 137) words="over its time; $words" ;; esac
  failed_logs+=("$log")
  row "$name" failed $took "$words (see $log)"
  return 1
}
# check NAME LIMIT NOTE_COMMAND COMMAND...: both.
check() {
  local name=$1 limit=$2 note=$3
  shift 3
  begin "$name" "$limit" "$@"
  collect "$name" "$note"
}
# beside NAME LIMIT COMMAND...: another trainer, whose want of time or memory is no failure.
beside() {
  local name=$1 limit=$2
  shift 2
  if [ "$(left)" -le 0 ]; then row "$name" skipped 0 "no time was left"; return 1; fi
  check "$name" "$limit" skipped_words "$@"
}
# Rows that a command prints as name|result|ratio|asked|note.
add_rows() {
  local name result ratio asked note
  while IFS='|' read -r name result ratio asked note; do
    row "$name" "$result" 0 "$note" "$ratio" "$asked"
  done < <("$@")
}
nothing() { :; }
skipped_words() { grep -m 1 '^skipped: ' "$1" | cut -c1-200 || true; }
# The last line, or why there was nothing to do.
last_words() { local words; words=$(skipped_words "$1"); if [ -n "$words" ]; then echo "$words"; else last_line "$1"; fi; }
# Not a file's name, such as error.h. CMake says where, and in the lines behind what.
first_error() {
  grep -m 1 -E 'error:|[Ee]rror [0-9C]|CMake Error at|CMake Error:|^FAILED|undefined reference' -A 6 "$1" | awk '
    NR == 1 { words = $0; if (!/^CMake Error at/) exit; next }
    /^Call Stack/ { exit }
    NF == 0 { if (told) exit; next }
    { $1 = $1; words = words " " $0; told = 1 }
    END { print words }' | cut -c1-300 || true
}
last_line() { tail -n 1 "$1" | cut -c1-100; }
# Tests that all skip are none that took place; what dies behind them did.
test_counts() {
  local passed skipped bad words
  passed=$(grep -c '^\[       OK \]' "$1" || true) skipped=$(grep -c '^\[  SKIPPED \].*(' "$1" || true)
  bad=$(grep -c '^\[  FAILED  \].*(' "$1" || true)
  words="$passed passed, $bad failed, $skipped skipped"
  if [ "$2" -ne 0 ]; then
    [ "$bad" -gt 0 ] || words="exit $2 without a failed test; $words"
  elif [ "$passed" -eq 0 ] && grep -q '^\[  PASSED  \] 0 tests' "$1"; then
    words="skipped: $words: $(grep -m 1 -A 1 ': Skipped$' "$1" | tail -n 1)"
  fi
  echo "$words"
}
sanitizer_words() {
  if grep -q 'Device not supported' "$1"; then
    echo 'skipped: compute-sanitizer does not support this device'
  else
    grep -m 1 -E '(ERROR|RACECHECK) SUMMARY' "$1" | sed 's/^=* *//' || true
  fi
}

# write_json RESULT: the table so far. ASCII, since a note may be cut within a letter.
write_json() {
  local LC_ALL=C separator='' line name result took note ratio asked key
  {
    printf '{"gpu": "%s", "result": "%s", "seconds": %d, "checks": [' "$gpu" "$1" $((SECONDS - started))
    for line in "${rows[@]}"; do
      IFS='|' read -r name result took note ratio asked <<<"$line"
      case $result in *expect*) key=expected ;; *) key=required ;; esac
      note=${note//[^[:print:]]/?}
      note=${note//\\/\\\\}
      printf '%s\n  {"name": "%s", "result": "%s", "seconds": %s, "ratio": %s, "%s": %s, "note": "%s"}' \
        "$separator" "$name" "$result" "$took" "${ratio:-null}" "$key" "${asked:-null}" "${note//\"/\\\"}"
      separator=,
    done
    printf '\n]}\n'
  } >"$json"
}
# What GoogleTest found, which lies before its list of names, or the end.
show_failure() {
  echo "--- $1"
  if grep -q ': Failure$' "$1"; then grep -m 4 -A 8 ': Failure$' "$1"; else tail -n 20 "$1"; fi | cut -c1-300
}
finish() {
  trap - EXIT
  local pid
  for pid in "${running[@]}"; do [ -z "$pid" ] || kill "$pid" || true; done
  local log result=passed more=''
  [ $failed -eq 0 ] || result=failed
  [ $below -eq 0 ] || more=", $below below expectation"
  [ $skipped -eq 0 ] || more+=", $skipped skipped"
  for log in "${failed_logs[@]}"; do show_failure "$log"; done
  write_json $result
  tar --create --gzip --file "${json%.json}-logs.tgz" --directory "$build" logs || true
  echo "$result in $((SECONDS - started)) s on ${gpu:-no GPU}$more; written to $json"
  exit $failed
}
trap 'row gpu_check failed 0 "it ended early"; finish' EXIT

