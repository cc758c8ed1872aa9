#!/bin/sh
# launch_test.sh: what launch.sh makes of how ranks end that are not ended by the launcher.
launch=$(dirname "$0")/launch.sh
failed=0

# ends STATUS WANTED WHAT COMMAND: how a launch of 3 ranks ends, of which WANTED are to end with status 1.
ends() {
  LEAVE_THE_REST=$2 "$launch" 3 sh -c "rank=\${OMPI_COMM_WORLD_RANK:-\$PMI_RANK}; $4" >/dev/null 2>&1
  status=$?
  [ $status -eq 77 ] && exit 77
  if [ $status -ne "$1" ]; then echo "$3: status $status, not $1"; failed=1; fi
}

ends 1 3 "all fail" "exit 1"
ends 0 3 "one of three ends well" "[ \$rank = 2 ] || exit 1"
ends 1 2 "one is killed and the others fail" "[ \$rank = 1 ] && kill -9 \$\$; exit 1"
ends 0 2 "one is killed and another ends well" "[ \$rank = 1 ] && kill -9 \$\$; [ \$rank = 2 ] || exit 1"
exit $failed
