#!/usr/bin/env bash
# Builds the fuzzers with clang and runs them all at once. Exits 1 where one finds something; the input that it found
# is then under build/fuzz/found.
#   scripts/fuzz.sh [SECONDS]      for each of them; 60 by default
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

seconds=${1:-60}
is_count "$seconds" || refuse "SECONDS is '$seconds'; a whole number from 1 is needed"
[ $# -le 1 ] || refuse "'$2' is one argument too many"
scripts/install_packages.sh clang libclang-rt-dev
configure fuzz
build fuzz

# Binary seeds are made here: a checkpoint's header before 256 bytes of data, which begin at 1024; a header's length
# before it, token files of 20 and 9 tokens.
seeds=build/fuzz/seeds
mkdir -p build/fuzz/found "$seeds"
cp -r fuzz/seeds/. "$seeds"
mkdir -p "$seeds"/{checkpoint,safetensors,tokens}
zeros() { head -c "$1" /dev/zero; }
tensors='{"__metadata__":{"format":"pt"},"a.b":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"c":{"dtype":"BF16","shape":[],"data_offsets":[8,10]}}'
header='{"version":2,"rank":0,"step":1,"samples":8,"configuration":"","steps_applied":1,"loss_scaler":null,"mesh":{"pipeline":1,"replicate":1,"shard":1,"tensor":1},"placements":{"parameters":"sharded","gradients":"sharded","optimizer_state":"sharded"},"optimizer":"adamw","layout":"0","parameter_numel":2,"ranks":[0],"contents":"0","units":[{"name":"u","parameters":[{"name":"p","shape":[2],"type":"fp32","trainable":true,"tied_to":""}]}],"buffers":[{"unit":"u","flat":0,"state":"parameter","whole":true,"offset":1024,"bytes":256,"xxh3":"0"}]}'
{ printf '\x01\0'; printf %-992s "$header"; } >"$seeds/checkpoint/one"
# The same of two tensor ranks: with a cut, and the checksum of a block whose own is 0.
cut=${header/version\":2/version\":3} cut=${cut/tensor\":1/tensor\":2}
cut=${cut/tied_to\":\"\"/tied_to\":\"\",\"cut\":\{\"dim\":0,\"segments\":[2],\"padded\":false\}}
cut=${cut/xxh3\":\"0\"/xxh3\":\"c77b3abb6f87acd9\",\"blocks\":\"0000000000000000\"}
{ printf '\x01\0'; printf %-992s "$cut"; } >"$seeds/checkpoint/cut"
{ printf "\\x$(printf %02x ${#tensors})"; zeros 7; printf %s "$tensors"; zeros 10; } >"$seeds/safetensors/two"
printf %s "$tensors" >"$seeds/safetensors/header"
printf '{"metadata":{"total_size":10},"weight_map":{"a":"model-00001-of-00002.safetensors"}}' >"$seeds/safetensors/index"
{ printf '\x88\xd8\x34\x01\x01\0\0\0\x14\0\0\0'; zeros 1012; zeros 40; } >"$seeds/tokens/uint16"
{ printf '\xa1\xd9\x34\x01\x07\0\0\0\x09\0\0\0'; zeros 1012; zeros 36; } >"$seeds/tokens/uint32"
printf 'text is bytes' >"$seeds/tokens/text"

# fuzz NAME: what it learns is kept in build/fuzz/corpus for the next time.
fuzz() {
  local corpus=build/fuzz/corpus/$1 log=build/fuzz/$1.log status=0
  mkdir -p "$corpus"
  build/fuzz/bin/fuzz_"$1" "$corpus" "$seeds/$1" -max_total_time="$seconds" -max_len=4096 -timeout=10 \
    -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix=build/fuzz/found/"$1"- >"$log" 2>&1 || status=$?
  if [ $status -eq 0 ]; then
    say "fuzz_$1: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs, nothing found"
    return
  fi
  tail -n 40 "$log" >&2
  case $status in
    126 | 127) echo "fuzz_$1 could not be run" >&2 ;;  # the shell's words, not the program's
    *) echo "fuzz_$1 found something; all of it is in $log" >&2 ;;
  esac
  return 1
}

say "fuzzing for $seconds seconds"
running=()
for name in checkpoint config program safetensors tokenizer tokens; do
  fuzz "$name" &
  running+=($!)
done
status=0
for process in "${running[@]}"; do wait "$process" || status=1; done
exit $status
