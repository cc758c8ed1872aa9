#!/bin/sh
# expect_failure.sh SECONDS TEXT COMMAND...: succeeds if the command fails within so many seconds and TEXT (a
# basic regular expression) is in what it prints, and no report of a sanitizer.
seconds=$1 text=$2
shift 2
start=$(date +%s)
output=$(timeout --signal=KILL "$seconds" "$@" 2>&1)
status=$?
took=$(($(date +%s) - start))
echo "$output"
case $status in
  0) echo "expect_failure: status 0" >&2; exit 1 ;;
  77) exit 77 ;;
esac
# By the clock: 137 is also the status of a launcher of which a rank was killed.
if [ $took -ge "$seconds" ]; then echo "expect_failure: not ended in $seconds s" >&2; exit 1; fi
if ! echo "$output" | grep -q "$text"; then
  echo "expect_failure: the output lacks: $text" >&2
  exit 1
fi
if echo "$output" | grep -q '\(WARNING\|ERROR\|FATAL\): [A-Za-z]*Sanitizer\|: runtime error: '; then
  echo "expect_failure: it failed for what a sanitizer reports" >&2
  exit 1
fi
