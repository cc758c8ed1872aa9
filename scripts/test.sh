#!/usr/bin/env bash
# Installs what is missing, builds everything and runs every test.
#   scripts/test.sh [CTEST_ARGUMENT...]      for example: scripts/test.sh -R sampler
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

scripts/install_packages.sh
configure release
build release
say "testing"
# Tests start threads of their own: two at a time keep timings honest on small machines.
exec ctest --preset release --parallel 2 "$@"
