#!/usr/bin/env bash
# Installs what is missing, builds everything and runs every test.
#   scripts/test.sh [CTEST_ARGUMENT...]      for example: scripts/test.sh -R data_test
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

scripts/install_packages.sh
if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
  scripts/cudnn_frontend.sh || say "without cuDNN: its frontend's headers could not be had"
fi
configure release
build release
say "testing"
# Tests start threads of their own: two at a time keep timings honest on small machines. A third waits most of its time.
exec ctest --preset release --parallel 3 --resource-spec-file "$root/tests/two_cores.json" "$@"
