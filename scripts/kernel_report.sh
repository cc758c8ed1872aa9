#!/usr/bin/env bash
# Registers, shared memory and spills of every CUDA kernel: scripts/kernel_report.sh [ARCHITECTURE...]
# (those of 80 90 100 that nvcc knows where none is named). Needs nvcc, on the PATH or named by CUDACXX, and no
# GPU. Fails where a memory-bound kernel spills: all are but attention's.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
architectures=("$@")
for architecture in "${architectures[@]}"; do
  [[ $architecture =~ ^[0-9]+[af]?$ ]] ||
    refuse "'$architecture' is no architecture; name a compute capability without its dot, such as 90"
done
nvcc=${CUDACXX:-nvcc}
command -v "$nvcc" >/dev/null || { echo "kernel_report: needs nvcc, on the PATH or named by CUDACXX; there is no '$nvcc'" >&2; exit 1; }
if [ ${#architectures[@]} -eq 0 ]; then
  mapfile -t architectures < <("$nvcc" --list-gpu-code | sed -nE 's/^sm_(80|90|100)$/\1/p')
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT

for architecture in "${architectures[@]}"; do
  for source in kernels/cuda/*.cu; do
    "$nvcc" -std=c++20 -O3 --fmad=false -Xcompiler=-ffp-contract=off -Iinclude -I. -arch="sm_$architecture" \
      -cubin -Xptxas -v -o /dev/null "$source" 2>&1
  done
done >"$log" || { cat "$log" >&2; exit 1; }

c++filt <"$log" | awk '
  # The kernel and its template arguments, without return type, parameters and our namespaces.
  function short(name) {
    gsub(/tessera::kernels::|cuda::|\(anonymous namespace\)::|_GLOBAL__N__[0-9a-zA-Z_]*::|\(int\)|\(bool\)/, "", name)
    sub(/^void /, "", name)
    for (i = 1; i <= length(name); ++i) {
      c = substr(name, i, 1)
      if (c == "<") ++depth
      if (c == ">") --depth
      if (c == "(" && depth == 0) { name = substr(name, 1, i - 1); break }
    }
    depth = 0
    return name
  }
  BEGIN { format = "%-84s %5s %9s %7s %6s %7s\n"; printf format, "kernel", "arch", "registers", "shared", "stack", "spilled" }
  /Compiling entry function/ {
    architecture = $0; sub(/.* for .sm_/, "", architecture); sub(/[^0-9].*/, "", architecture)
    kernel = $0; sub(/.*entry function ./, "", kernel); sub(/. for .sm_.*/, "", kernel)
  }
  /bytes stack frame/ { stack = $1; spilled = $5 + $9 }
  /Used [0-9]+ registers/ {
    registers = $0; sub(/.*Used /, "", registers); sub(/ .*/, "", registers)
    shared = $0; if (!sub(/ bytes smem.*/, "", shared)) shared = 0; sub(/.* /, "", shared)
    printf format, short(kernel), architecture, registers, shared, stack, spilled
    ++kernels
    if (spilled > 0 && kernel !~ /attention/) ++bad
  }
  END {
    if (kernels == 0) { print "no kernel was reported" > "/dev/stderr"; exit 1 }
    printf "%d kernels, %d memory-bound ones spill\n", kernels, bad
    exit bad > 0
  }'
