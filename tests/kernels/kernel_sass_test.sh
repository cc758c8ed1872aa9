#!/usr/bin/env bash
# kernel_sass_test.sh SOURCES: what scripts/kernel_sass.sh makes of machine code, over a cuobjdump of the test's own.
set -euo pipefail
sources=$(realpath "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/tools"
cat >"$folder/tools/cuobjdump" <<'END'
#!/bin/sh
[ "$1 $2 $3" = "-sass -arch sm_90" ] && cat "$4"
END
cp "$folder/tools/cuobjdump" "$folder/tools/nvdisasm"
chmod +x "$folder"/tools/*
# kernel NAME OPERATION...: its machine code, in kernels.o.
kernel() {
  echo "		Function : $1"
  shift
  for operation in "$@"; do echo "        /*0010*/                   $operation ;    /* 0x0 */"; done
}
# check STATUS: of the kernels that standard input describes; out.txt has the table.
check() {
  local status=0
  cat >"$folder/kernels.o"
  CUOBJDUMP_FOLDER=$folder/tools "$sources/scripts/kernel_sass.sh" 90 "$folder/kernels.o" >"$folder/out.txt" 2>&1 || status=$?
  [ $status = "$1" ] && return
  echo "exit $status, expected $1:"
  cat "$folder/out.txt"
  exit 1
}
holds() { grep -q "$1" "$folder/out.txt" || { echo "no '$1' in:"; cat "$folder/out.txt"; exit 1; }; }

wide='LDG.E.128 R4, desc[UR12][R24.64]' scalar='LDG.E R4, desc[UR12][R24.64]' out='STG.E.128 desc[UR12][R4.64], R8'
half='LDG.E.64 R4, desc[UR12][R24.64]' half_out='@P0 STG.E.64 desc[UR12][R4.64], R8' scalar_out='STG.E.U16 desc[UR12][R4.64], R8'
{
  kernel a_kernel "$wide" "$scalar" "$out" "$scalar_out"
  kernel narrowing_kernel "$wide" "$half_out"
  kernel widening_kernel "$half" "$out"
  kernel statistics_kernel "$wide" "$scalar_out"
  kernel sort_tile_kernel "$scalar" 'STL [R1], R2'
  kernel _ZN7tessera7kernels4cuda12_GLOBAL__N_112sweep_kernelILi4EEEvf "$wide" "$out"
} | check 0
holds '^a_kernel  *90  *1  *0  *1  *0  *0 *$'
holds '^sweep_kernel<4>  *90 '
holds '^6 kernels, 5 of them memory-bound, 0 of these with a fault$'
kernel b_kernel "$scalar" "$out" | check 1
holds '^b_kernel .* narrow$'
kernel c_kernel "$half" "$half_out" | check 1
kernel d_kernel "$wide" | check 1
kernel e_kernel "$wide" "$out" 'STL [R1], R2' '@P1 LDL R2, [R1]' | check 1
holds '^e_kernel  *90 .* 2  local$'
holds '^1 kernels, 1 of them memory-bound, 1 of these with a fault$'
check 1 </dev/null
holds '^no kernel was found for sm_90$'
# Where there are no tools.
mkdir "$folder/none"
status=0
CUOBJDUMP_FOLDER=$folder/none PATH=/usr/bin:/bin CUDACXX=none "$sources/scripts/kernel_sass.sh" 90 "$folder/kernels.o" \
  >"$folder/out.txt" || status=$?
[ -x /usr/local/cuda/bin/cuobjdump ] || [ -x /usr/bin/cuobjdump ] || { [ $status = 77 ] && holds '^skipped: cuobjdump '; }
