#!/bin/sh
# launch.sh RANKS PROGRAM [ARGUMENTS]: starts PROGRAM as RANKS processes by this machine's mpirun; more ranks
# than cores are fine. Status 77 where there is no mpirun.
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
    exec "$launcher" --allow-run-as-root --oversubscribe --bind-to none -n "$ranks" "$@" ;;
  *)
    exec "$launcher" -n "$ranks" "$@" ;;
esac
