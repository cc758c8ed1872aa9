#!/usr/bin/env bash
# Makes tests/emulated_cuda/kernel_limits.txt anew: what nvcc reports of every CUDA kernel, which the emulation
# of CUDA holds launches to. Compiles only the sources that changed since, a file in about 15 seconds.
#   scripts/kernel_limits.sh           writes the table
#   scripts/kernel_limits.sh --check   compiles nothing; fails where the table is older than the sources, with 77
#                                      if there is no nvcc to make it anew
# Needs nvcc, on the PATH, in /usr/local/cuda or named by CUDACXX, and no GPU.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
table=tests/emulated_cuda/kernel_limits.txt
architectures=(80 90 100)
case "${1:-}" in
  "" | --check) ;;
  *) refuse "'$1' is no option; use --check, or nothing" ;;
esac

# A source's text and that of all headers that a kernel may include, without comments and space.
hash_of() {
  cat "$1" kernels/*.h kernels/cuda/*.cuh kernels/cuda/*.h optim/rules.h optim/rules/*.h include/tessera/philox.h |
    sed -e 's,//.*,,' | tr -d '[:space:]' | sha256sum | cut -c 1-16
}
is_current() { [ -e "$table" ] && grep -qx "\[$(basename "$1")\] $(hash_of "$1")" "$table"; }

nvcc=${CUDACXX:-nvcc}
command -v "$nvcc" >/dev/null || nvcc=/usr/local/cuda/bin/nvcc
has_nvcc() { command -v "$nvcc" >/dev/null; }

if [ "${1:-}" = --check ]; then
  old=()
  for source in kernels/cuda/*.cu; do is_current "$source" || old+=("$(basename "$source")"); done
  [ ${#old[@]} = 0 ] && exit 0
  echo "$table is older than ${old[*]}, or than headers that they include: run scripts/kernel_limits.sh" >&2
  if has_nvcc; then exit 1; fi
  echo "skipped: there is no nvcc here" >&2
  exit 77
fi
has_nvcc || { echo "kernel_limits: needs nvcc, on the PATH, in /usr/local/cuda or named by CUDACXX" >&2; exit 1; }

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# The lines of a source: a kernel's symbol as the emulation's compiler has it, its bounds, registers, shared memory.
report() {
  local source=$1 architecture logs=()
  for architecture in "${architectures[@]}"; do
    logs+=("$folder/$architecture.log")
    "$nvcc" -std=c++20 -O3 --fmad=false -Xcompiler=-ffp-contract=off -Iinclude -I. -arch="sm_$architecture" -cubin \
      -Xptxas -v --keep --keep-dir "$folder" -o /dev/null "$source" >"$folder/$architecture.log" 2>&1 ||
      { cat "$folder/$architecture.log" >&2; return 1; }
  done
  local anonymous
  anonymous="[0-9]+_GLOBAL__N__[0-9a-f]{8}_[0-9]+_$(basename "$source" | tr . _)_[0-9a-f]{8}"
  awk '
    /^\.entry|^\.visible \.entry/ { entry = $0; sub(/.*\.entry /, "", entry); sub(/\(.*/, "", entry); bounds[entry] = 0 }
    /^\.maxntid/ { gsub(/,/, ""); bounds[entry] = $2 * ($3 == "" ? 1 : $3) * ($4 == "" ? 1 : $4) }
    /Compiling entry function/ {
      name = $0; sub(/.*entry function ./, "", name); sub(/. for .sm_.*/, "", name)
      if (!(name in seen)) { seen[name] = 1; names[++count] = name }
    }
    /Used [0-9]+ registers/ {
      used = $0; sub(/.*Used /, "", used); sub(/ .*/, "", used)
      shared = $0; if (!sub(/ bytes smem.*/, "", shared)) shared = 0; sub(/.* /, "", shared)
      registers[name] = registers[name] " " used; memory[name] = memory[name] " " shared
    }
    END {
      for (i = 1; i <= count; ++i) {
        if (!(names[i] in bounds)) { print "no bounds of " names[i] > "/dev/stderr"; exit 1 }
        print names[i], bounds[names[i]] registers[names[i]] memory[names[i]]
      }
    }' "$folder"/*.ptx "${logs[@]}" | sed -E "s/$anonymous/12_GLOBAL__N_1/g" | LC_ALL=C sort
}

{
  echo "# Written by scripts/kernel_limits.sh from what nvcc reports. A kernel's symbol; the threads that its launch"
  echo "# bounds allow, 0: any; its registers and its bytes of static shared memory, each for ${architectures[*]/#/sm_}."
  for source in kernels/cuda/*.cu; do
    if is_current "$source"; then
      awk -v head="[$(basename "$source")]" '/^\[/ { on = $1 == head } on' "$table"
      continue
    fi
    echo "kernel_limits: $source" >&2
    rm -f "$folder"/*
    lines=$(report "$source")
    [ -z "$lines" ] && { echo "kernel_limits: nvcc reported no kernel of $source" >&2; exit 1; }
    echo "[$(basename "$source")] $(hash_of "$source")"
    echo "$lines"
  done
} >"$folder.table"
mv "$folder.table" "$table"
