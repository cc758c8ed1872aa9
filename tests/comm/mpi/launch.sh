#!/bin/sh
# launch.sh RANKS PROGRAM [ARGUMENTS]: starts PROGRAM as RANKS processes by this machine's mpirun; more ranks
# than cores are fine. Status 77 where there is no mpirun. With LEAVE_THE_REST=N the launcher does not end the
# others when one ends, so that what they say is theirs; the status is then 1 where N of them ended with it, else 0.
launcher=${MPIEXEC:-mpirun}
if ! command -v "$launcher" >/dev/null 2>&1; then
  echo "skipped: there is no $launcher on this machine"
  exit 77
fi
ranks=$1
shift
case $("$launcher" --version 2>&1) in
  *"Open MPI"* | *OpenRTE*)
    export OMPI_MCA_btl_vader_single_copy_mechanism=none  # containers often forbid it, loudly
    options="--allow-run-as-root --oversubscribe --bind-to none"
    leave="--enable-recovery --mca orte_abort_on_non_zero_status 0" ;;
  *)
    options=""
    leave="-disable-auto-cleanup" ;;
esac
# shellcheck disable=SC2086  # several words, here and below
if [ -z "$LEAVE_THE_REST" ]; then exec "$launcher" $options -n "$ranks" "$@"; fi

STATUSES=$(mktemp)
export STATUSES
trap 'rm -f "$STATUSES"' EXIT
# shellcheck disable=SC2016  # each rank's own; MPICH's launcher tells the rest by a signal that would end them
"$launcher" $options $leave -n "$ranks" sh -c 'trap "" USR1; "$@"; status=$?; echo "$status" >>"$STATUSES"; exit "$status"' sh "$@"
failed=$(grep -c '^1$' "$STATUSES")
echo "launch: $failed of $ranks ended with status 1, $LEAVE_THE_REST are to"
if [ "$failed" -ne "$LEAVE_THE_REST" ]; then exit 0; fi
exit 1
