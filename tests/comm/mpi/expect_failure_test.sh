#!/bin/sh
# expect_failure_test.sh: what expect_failure.sh lets pass, and what it does not.
expect_failure=$(dirname "$0")/../expect_failure.sh
failed=0

# ends STATUS WHAT COMMAND: how a command ends of which a failure that says "lost" is expected.
ends() {
  "$expect_failure" 3 "rank . is lost" sh -c "$3" >/dev/null 2>&1
  status=$?
  if [ $status -ne "$1" ]; then echo "$2: status $status, not $1"; failed=1; fi
}

ends 0 "the failure that is expected" "echo rank 1 is lost; exit 1"
ends 1 "no failure" "echo rank 1 is lost"
ends 1 "another failure" "echo the disk is full; exit 1"
ends 0 "a launcher that ends as a rank that was killed" "echo rank 1 is lost, on signal 9; exit 137"
ends 1 "no end" "echo rank 1 is lost; sleep 60"
ends 1 "no end behind a rank that was killed" "echo rank 1 is lost, on signal 9; sleep 60"
ends 77 "what cannot run here" "echo skipped; exit 77"
for report in "WARNING: ThreadSanitizer: data race" "ERROR: AddressSanitizer: heap-use-after-free" \
  "group.cpp:7:3: runtime error: signed integer overflow"; do
  ends 1 "a report" "echo rank 1 is lost; echo '$report' >&2; exit 1"
done
exit $failed
