#!/usr/bin/env bash
# Packs the libraries that Tessera is built from, as installed on this Debian machine, the headers that
# scripts/cudnn_frontend.sh gets, and NVTX's where a CUDA toolkit here has them, for scripts/gpu_check.sh on a machine that
# has a GPU and no packages. The rest of CUDA is that machine's own.
#   scripts/gpu_libraries.sh [FILE]      build/gpu-libraries.tar.gz by default
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
case ${1:-} in -*) refuse "unknown argument '$1'" ;; esac
[ $# -le 1 ] || refuse "'$2' is one argument too many"
file=build/gpu-libraries.tar.gz
[ $# -eq 0 ] || file=$(path_of "$1")
mkdir -p "$(dirname "$file")"

packages=(
  libdnnl-dev libdnnl2 ocl-icd-libopencl1 libhwy-dev libhwy1 libfmt-dev libfmt9
  libxxhash-dev libasio-dev nlohmann-json3-dev libtomlplusplus-dev libtomlplusplus3 libcli11-dev
  libgtest-dev libgmock-dev libbenchmark-dev libbenchmark1debian liburing-dev liburing2
)
list=$(mktemp)
trap 'rm -f "$list"' EXIT
for package in "${packages[@]}"; do
  dpkg-query --listfiles "$package" 2>/dev/null || { echo "gpu_libraries: $package is not installed" >&2; exit 1; }
done | grep -E '^/usr/(include|lib|share/cmake|share/pkgconfig)' | sort -u |
  while read -r path; do if [ -L "$path" ] || [ -f "$path" ]; then echo "${path#/}"; fi; done >"$list"
scripts/cudnn_frontend.sh
nvtx=()
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
toolkit=$(dirname "$(dirname "$(realpath -m "$nvcc")")")
if [ -d "$toolkit/include/nvtx3" ]; then nvtx=(--directory "$toolkit" include/nvtx3); fi
tar --create --gzip --file "$file" --directory / --files-from "$list" --transform 's,^include,usr/include,' \
  --directory "$PWD/build/cudnn-frontend" include "${nvtx[@]}"
echo "$file: $(wc -l <"$list") files, $(du -h "$file" | cut -f1)"
