#!/usr/bin/env bash
# Puts together a CUDA toolkit that Tessera builds with, in a folder of its own, as another user than root, too. The
# libraries come as NVIDIA's pip wheels, and so does the compiler of CUDA 13. NVIDIA's wheels of CUDA 12 have no nvcc:
# Debian 13's packages have it, which are unpacked and not installed.
#   scripts/cuda_toolkit.sh 12.4|13.0 FOLDER      FOLDER must not exist; it takes 4 GiB, and 3 GiB more meanwhile
# Then: cmake ... -DTESSERA_WITH_CUDA=ON -DCUDAToolkit_ROOT=FOLDER -DCMAKE_CUDA_COMPILER=FOLDER/bin/nvcc
# Needs a network, pip, and for 12.4 apt-get and Debian's keys (debian-archive-keyring).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
[ $# -eq 2 ] || refuse "two arguments are needed, a version and a folder; there are $#"
version=$1 target=$(path_of "$2")
# The wheels of one release, and the cuDNN that kernels/cuda/cudnn_layout.h was written with. NVIDIA withdrew
# nvidia-cuda-cccl-cu12 12.4.127.
case $version in
  12.4) wheels=(nvidia-cuda-cccl-cu12==12.4.127.post1 nvidia-cublas-cu12==12.4.5.8 nvidia-nvtx-cu12==12.4.127
                nvidia-nccl-cu12==2.28.9 nvidia-cudnn-cu12==9.19.0.56) ;;
  13.0) wheels=(nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96
                nvidia-cuda-cccl==13.0.85 nvidia-cublas==13.1.0.3 nvidia-nvtx==13.0.85
                nvidia-cuda-cuobjdump==13.2.51 nvidia-cuda-nvdisasm==13.2.51  # their first; they read what 13.0 makes
                nvidia-nccl-cu13==2.28.9 nvidia-cudnn-cu13==9.19.0.56) ;;
  *) refuse "'$version' is no version; there are 12.4 and 13.0" ;;
esac
[ ! -e "$target" ] || refuse "'$target' exists; name a folder that does not"
python3 -m pip --version >/dev/null 2>&1 || { echo "cuda_toolkit: python3 has no pip" >&2; exit 1; }
parent=$(dirname "$target")
mkdir -p "$parent"
work=$(mktemp -d "$parent/cuda-toolkit.XXXXXX")
trap 'rm -rf "$work"' EXIT
made=$work/made
mkdir -p "$made"/{bin,include,lib}
ln -s lib "$made/lib64"

# Each wheel has folders such as nvidia/cublas/include or nvidia/cu13/include: what they hold goes into one.
say "wheels of CUDA $version"
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$work/wheels" "${wheels[@]}"
for wheel in "$work"/wheels/*.whl; do
  python3 -m zipfile --extract "$wheel" "$work/unpacked"
  find "$work/unpacked" -name '*.py' -delete
  for part in "$work"/unpacked/nvidia/*/; do cp --archive --link --force "$part." "$made"; done
  rm -rf "$work/unpacked" "$wheel"
done

# debian_packages NAME...: their files, in $work/debian. Lists and state of this call's own, so that nothing of the
# system's is touched.
debian_packages() {
  local keys=/usr/share/keyrings/debian-archive-keyring.gpg apt=$work/apt
  { command -v apt-get && command -v dpkg-deb; } >/dev/null || { echo "cuda_toolkit: 12.4 needs apt-get and dpkg-deb" >&2; exit 1; }
  [ -f "$keys" ] || { echo "cuda_toolkit: there is no $keys; install debian-archive-keyring" >&2; exit 1; }
  mkdir -p "$apt"/{lists,cache/archives}/partial "$work/packages"
  touch "$apt/status"
  echo "deb [arch=amd64 signed-by=$keys] http://deb.debian.org/debian trixie non-free" >"$apt/sources.list"
  printf '%s "%s";\n' Dir::State "$apt" Dir::State::status "$apt/status" Dir::Cache "$apt/cache" \
    Dir::Etc::sourcelist "$apt/sources.list" Dir::Etc::sourceparts /dev/null APT::Architecture amd64 \
    APT::Sandbox::User root >"$apt/conf"
  APT_CONFIG=$apt/conf apt-get -qq update
  (cd "$work/packages" && APT_CONFIG=$apt/conf apt-get -qq download "$@")
  for package in "$work"/packages/*.deb; do
    # Of the libraries that there are, 2 GiB, what links a program to the CUDA runtime.
    dpkg-deb --fsys-tarfile "$package" | tar --extract --one-top-level="$work/debian" --wildcards \
      --exclude='./usr/lib/x86_64-linux-gnu/lib[!c]*' --exclude='./usr/lib/x86_64-linux-gnu/libcu[!d]*' --exclude='./usr/share/*'
    rm "$package"
  done
}
if [ "$version" = 12.4 ]; then
  say "nvcc $version of Debian 13"
  debian_packages nvidia-cuda-toolkit nvidia-cuda-dev
  usr=$work/debian/usr own=$work/debian/usr/lib/nvidia-cuda-toolkit
  # Debian's own, which know where its packages lie.
  rm -f "$usr"/bin/{nvcc,compute-sanitizer} "$own/bin"/{gcc,g++,nvcc.profile}
  mkdir -p "$made/nvvm/bin"
  mv "$own/bin/cicc" "$made/nvvm/bin"
  mv "$own/libdevice" "$made/nvvm"
  cp --archive --link --force "$own/bin/." "$usr/bin/." "$made/bin"
  mv "$own/compute-sanitizer" "$made"
  cp --archive --link --force "$usr/include/." "$made/include"
  cp --archive --link "$usr"/lib/x86_64-linux-gnu/libcud{art_static,adevrt}.a "$made/lib"
  cat >"$made/bin/nvcc.profile" <<'END'
TOP                = $(_HERE_)/..
CICC_PATH          = $(TOP)/nvvm/bin
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
LD_LIBRARY_PATH   += $(TOP)/lib:
PATH              += $(CICC_PATH):$(_HERE_):
INCLUDES          += "-I$(TOP)/include" $(_SPACE_)
LIBRARIES         =+ $(_SPACE_) "-L$(TOP)/lib"
END
fi

# The wheels have only the names that programs load.
for library in "$made"/lib/*.so.[0-9]*; do
  name=$(basename "$library")
  ln -sf "$name" "$made/lib/${name%%.so.*}.so"
done
chmod -R u+rwX,go+rX "$made"
chmod a+x "$made"/bin/* "$made"/nvvm/bin/*
"$made/bin/nvcc" --version | grep -q "release $version," || { echo "cuda_toolkit: that is no nvcc $version" >&2; exit 1; }
mv "$made" "$target"
say "CUDA $version in $target"
