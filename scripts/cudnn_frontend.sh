#!/usr/bin/env bash
# Unpacks NVIDIA's headers over cuDNN's graphs (the Python package nvidia-cudnn-frontend) to build/cudnn-frontend, where
# CMake looks for them. Needs a network the first time, and pip, which it installs on Debian.
#   scripts/cudnn_frontend.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
[ $# -eq 0 ] || refuse "'$1' is one argument too many"
version=1.32.0
target=build/cudnn-frontend
[ -f "$target/$version" ] && exit 0
python3 -m pip --version >/dev/null 2>&1 || scripts/install_packages.sh python3-pip
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$folder" \
  "nvidia-cudnn-frontend==$version"
python3 -m zipfile --extract "$folder"/*.whl "$folder/wheel"
if [ ! -f "$folder/wheel/include/cudnn_frontend.h" ]; then
  echo "cudnn_frontend: the package has no include/cudnn_frontend.h" >&2
  exit 1
fi
rm -rf "$target"
mkdir -p "$target"
cp -r "$folder/wheel/include" "$target/include"
touch "$target/$version"
