#!/bin/sh
# launch_by_tool.sh RANKS TOOL ARGUMENT...: starts TOOL as so many ranks, by its own command `launch`.
ranks=$1
shift
exec "$1" launch -n "$ranks" -- "$@"
