#!/usr/bin/env bash
# examples_test.sh FOLDER: what the example programs in it say of arguments that they cannot use: the help, and exit status 2.
set -euo pipefail
programs=$(realpath "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
seq 2000 >text.txt
echo short >short.txt
fail() { echo "$*:"; cat out.txt err.txt; exit 1; }
# run STATUS PROGRAM [ARGUMENT...]: out.txt and err.txt of one that ends so.
run() {
  local expected=$1 program=$2 status=0
  shift 2
  "$programs/$program" "$@" >out.txt 2>err.txt || status=$?
  [ $status = "$expected" ] || fail "exit $status, expected $expected, of $program $*"
}
# says STATUS WORDS PROGRAM [ARGUMENT...]: the error. The help follows where the status is 2.
says() {
  local expected=$1 words=$2
  shift 2
  run "$expected" "$@"
  grep -qF -- "$1: $words" err.txt || fail "$* does not say '$words'"
  [ "$expected" != 2 ] || grep -q "^usage: $1 " err.txt || fail "$* is refused without its usage"
  [ ! -s out.txt ] || fail "$* prints all the same"
}

names=(custom_module gpt_plain gpt_sharded spiral spiral_c tensor_parallel two_operators train_gpt larger_than_memory)
if [ -x "$programs/embed_libtorch" ]; then names+=(embed_libtorch); fi
for name in "${names[@]}"; do
  for help in --help -h; do
    run 0 "$name" $help
    head -n 1 out.txt | grep -q "^usage: $name " && [ ! -s err.txt ] || fail "$name $help shows no usage"
  done
done
for name in spiral spiral_c; do
  says 2 "RANKS is 'abc'; a whole number from 1 to 1024 is needed" $name abc
  says 2 "RANKS is '0'" $name 0
  says 2 "RANKS is '2x'" $name 2x
  says 2 "STAGE is '4'; a whole number from 0 to 3 is needed" $name 2 4
  says 2 "STEPS is '1e3'; a whole number from 1 to 1000000 is needed" $name 2 3 1e3
  says 2 "STEPS is '99999999999999999999'" $name 2 3 99999999999999999999
done
for name in gpt_plain gpt_sharded; do
  run 2 $name
  grep -q "^usage: $name FILE" err.txt || fail "$name without a file shows no usage"
  run 2 $name text.txt 5x
  grep -q "^STEPS is '5x'; a whole number from 1 to 1000000 is needed$" err.txt || fail "$name takes 5x steps"
  run 2 $name none
  grep -q "^none: cannot be read, or has fewer than 64 bytes$" err.txt || fail "$name reads a file that is not there"
done
run 2 gpt_plain text.txt 5 3
run 2 gpt_sharded text.txt 5 4
run 2 gpt_sharded text.txt 5 3 9
run 2 spiral 1 0 5 more
run 2 spiral_c 1 0 5 folder more
says 2 "STEPS is '5x'" two_operators 5x
run 2 two_operators 5 5
says 2 "STEPS is '5x'" custom_module 5x
run 2 custom_module 5 5
run 0 custom_module 3
grep -q "^the same losses, bit for bit$" out.txt || fail "custom_module does not say that recomputation changes no bit"
run 2 tensor_parallel 2
run 0 tensor_parallel
grep -q "^y, dx and both gradients are those of one rank$" out.txt || fail "tensor_parallel does not compare its results"
[ "$(grep -c "^rank [01] received 200 bytes along the tensor axis$" out.txt)" = 2 ] || fail "tensor_parallel received other bytes"
grep -q "^  all of it  *200 bytes$" out.txt || fail "tensor_parallel's exchanges are not what was received"
run 2 train_gpt
says 2 "STEPS is 'abc'" train_gpt text.txt abc
says 2 "STEPS is '0'" train_gpt text.txt 0
says 1 "cannot read 'none': No such file" train_gpt none
if [ -x "$programs/embed_libtorch" ]; then says 2 "STEPS is 'abc'" embed_libtorch abc; fi

says 2 'no FILE is named' larger_than_memory
says 2 "'short.txt' is a second FILE" larger_than_memory text.txt short.txt
says 2 "--steps needs a value" larger_than_memory text.txt --steps
says 2 "--steps is '0.5'; a whole number from 1 is needed" larger_than_memory text.txt --steps 0.5
says 2 "--limit is 'nan'; a number of GiB above 0 is needed" larger_than_memory text.txt --limit nan
says 2 '-x is no option; there are --preset, ' larger_than_memory -x text.txt
says 2 "'short.txt' has 6 bytes; more than 64 are needed" larger_than_memory short.txt --preset gpt2-tiny
says 1 "cannot read 'none': No such file" larger_than_memory none
says 2 '--limit is 0.05 GiB, and what the process maps and the plan take 0.' larger_than_memory text.txt \
  --preset gpt2-tiny --limit 0.05
