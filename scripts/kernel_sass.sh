#!/usr/bin/env bash
# Looks at the machine code of CUDA kernels: how wide they load and store, and whether they use local memory, which is where
# spilled registers go. Fails where a memory-bound kernel has no 128-bit loads or stores, or uses local memory.
#   scripts/kernel_sass.sh ARCHITECTURE OBJECT...
#   scripts/kernel_sass.sh 90 build/release/kernels/CMakeFiles/tessera_kernels.dir/cuda/*.cu.o
# Needs cuobjdump and nvdisasm, no GPU: on the path, beside nvcc, or in the folder that CUOBJDUMP_FOLDER names. NVIDIA's pip
# wheels nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm have them. Without them it prints "skipped" and exits with 77.
set -euo pipefail
files=()
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
[ $# -ge 2 ] || refuse "an architecture and object files are needed; there are $# arguments"
[[ $1 =~ ^[0-9]+[af]?$ ]] || refuse "'$1' is no architecture; name a compute capability without its dot, such as 90"
architecture=$1
shift
for file in "$@"; do
  [ -f "$(path_of "$file")" ] || refuse "there is no file '$file'"
  files+=("$(path_of "$file")")
done
folder=''
for found in "${CUOBJDUMP_FOLDER:-}" "$(dirname "$(command -v cuobjdump || echo none/none)")" \
  "$(dirname "$(realpath -m "$(command -v "${CUDACXX:-nvcc}" || echo none/none)")")" /usr/local/cuda/bin; do
  if [ -n "$found" ] && [ -x "$found/cuobjdump" ] && [ -x "$found/nvdisasm" ]; then folder=$found; break; fi
done
if [ -z "$folder" ]; then
  echo "skipped: cuobjdump and nvdisasm are not on the path, nor beside nvcc; CUOBJDUMP_FOLDER may name their folder"
  exit 77
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for file in "${files[@]}"; do
  PATH=$folder:$PATH cuobjdump -sass -arch "sm_$architecture" "$file" | grep -E 'Function :|LDG|STG| LDL| STL' || true
done >"$log"
c++filt <"$log" | awk -v architecture="$architecture" -f scripts/kernel_sass.awk
