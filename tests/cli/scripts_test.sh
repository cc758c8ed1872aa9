#!/usr/bin/env bash
# scripts_test.sh SOURCES: every script tells what it is for with --help, and refuses arguments that it cannot use, before
# it installs, builds or writes anything. Files are where the caller means them.
set -euo pipefail
sources=$(realpath "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
checkout=$folder/checkout
mkdir -p "$folder"/{tools,elsewhere} "$checkout/fuzz/seeds"
cp -r "$sources/scripts" "$checkout"
cd "$folder/elsewhere"
export PATH=$folder/tools:$PATH
for tool in apt-get dpkg-query sudo cmake ctest ninja python3 clang-tidy mpirun unshare nvcc; do
  printf '#!/bin/sh\necho "%s $*" >>"%s"\nexit 1\n' "$tool" "$folder/started.txt" >"$folder/tools/$tool"
  chmod +x "$folder/tools/$tool"
done
fail() { echo "$*:"; cat "$folder"/{out,err}.txt; exit 1; }
# run STATUS SCRIPT [ARGUMENT...]: out.txt and err.txt of one that ends so.
run() {
  local expected=$1 script=$2 status=0
  shift 2
  "$checkout/scripts/$script" "$@" >"$folder/out.txt" 2>"$folder/err.txt" </dev/null || status=$?
  [ $status = "$expected" ] || fail "exit $status, expected $expected, of $script $*"
}
nothing_done() {
  [ ! -e "$folder/started.txt" ] || fail "$* started $(cat "$folder/started.txt")"
  [ ! -e "$checkout/build" ] || fail "$* began to build"
  [ -z "$(ls -A)" ] || fail "$* wrote $(ls -A)"
}
comment() { awk 'NR > 1 && !/^#/ { exit } NR > 1 { sub(/^# ?/, ""); print }' "$checkout/scripts/$1"; }
# refused SCRIPT WORDS [ARGUMENT...]
refused() {
  local script=$1 words=$2
  shift 2
  run 2 "$script" "$@"
  nothing_done "$script" "$@"
  [ ! -s "$folder/out.txt" ] || fail "a refusal goes to standard error"
  head -n 1 "$folder/err.txt" | grep -qF -- "${script%.sh}: $words" || fail "$script $* is not refused for '$words'"
  tail -n +2 "$folder/err.txt" | cmp -s - <(comment "$script") || fail "$script $* is refused without its help"
}

for path in "$checkout"/scripts/*.sh; do
  script=${path##*/}
  case $script in common.sh | gpu_table.sh) continue ;; esac  # others source them
  for help in --help -h; do
    run 0 "$script" $help
    nothing_done "$script" $help
    [ ! -s "$folder/err.txt" ] || fail "$script $help complains"
    cmp -s "$folder/out.txt" <(comment "$script") || fail "$script $help is not the comment at its top"
    grep -q "scripts/$script" "$folder/out.txt" || fail "$script $help does not show how it is called"
  done
  grep -q "^scripts/$script " "$sources/CONTRIBUTING.md" || fail "CONTRIBUTING.md does not name $script"
done

refused cudnn_frontend.sh "'x' is one argument too many" x
refused cuda_toolkit.sh "two arguments are needed, a version and a folder; there are 1" 12.4
refused cuda_toolkit.sh "'11.8' is no version; there are 12.4 and 13.0" 11.8 folder
refused cuda_toolkit.sh "'$folder' exists" 12.4 "$folder"
refused demo.sh "'b' is one argument too many" a b
refused fuzz.sh "SECONDS is 'abc'; a whole number from 1 is needed" abc
refused fuzz.sh "SECONDS is '0'" 0
refused fuzz.sh "'b' is one argument too many" 1 b
refused gpu_check.sh "unknown argument '--no'" --no
refused long_tests.sh "'b' is one argument too many" a b
refused long_tests.sh "no test of these has 'nothing' in its name" nothing
refused gpu_check.sh "there is no file '$PWD/none'" --libraries none
refused gpu_libraries.sh "unknown argument '--no'" --no
refused gpu_libraries.sh "'b' is one argument too many" a b
refused header_cost.sh "PAIRS is 'x'; a whole number from 1 is needed" x
refused header_cost.sh "'b' is one argument too many" 1 b
refused install_packages.sh "'--no' is no package" --no
refused kernel_report.sh "'x' is no architecture" x
refused kernel_sass.sh "an architecture and object files are needed; there are 1 arguments" 90
refused kernel_sass.sh "'x' is no architecture" x y
refused kernel_sass.sh "there is no file 'none'" 90 none
refused package.sh "unknown argument '--no'" --no
refused package.sh "'b' is one argument too many" --check b
refused sanitize.sh "there is no preset 'foo' of sanitizers; there are asan and tsan" foo
refused tidy.sh "there is no file or folder 'none'" none
refused two_hosts.sh "RANKS is ''; a whole number from 1 is needed"
refused two_hosts.sh "RANKS is 'x'" x program
refused two_hosts.sh "no PROGRAM is named" 2

# What is missing is named, once.
CUDACXX=none run 1 kernel_report.sh 90
nothing_done kernel_report.sh
[ "$(cat "$folder/err.txt")" = "kernel_report: needs nvcc, on the PATH or named by CUDACXX; there is no 'none'" ] ||
  fail "kernel_report.sh without nvcc"
run 1 demo.sh none
nothing_done demo.sh none
grep -q "^demo: cannot read the text file 'none'" "$folder/err.txt" || fail "demo.sh none"

# From here on packages are there, and builds succeed, though of nothing.
for script in install_packages.sh cudnn_frontend.sh; do echo '#!/bin/sh' >"$checkout/scripts/$script"; done
echo '#!/bin/sh' >"$folder/tools/cmake"
run 1 fuzz.sh 1
for name in config program safetensors tokens; do
  grep -q "^fuzz_$name could not be run" "$folder/err.txt" || fail "fuzz.sh without its programs"
done
if grep -q 'found something' "$folder/err.txt"; then fail "fuzz.sh found something without its programs"; fi

# The demo trains by the tool that it built.
mkdir -p "$checkout/build/release/bin" "$checkout/examples/train_gpt"
printf '#!/bin/sh\necho "tool $*"\n' >"$checkout/build/release/bin/tessera"
chmod +x "$checkout/build/release/bin/tessera"
run 0 demo.sh "$checkout/scripts/demo.sh"
tail -n 1 "$folder/out.txt" | grep -qx -- "tool train examples/train_gpt/demo.toml \
--set data.train=$checkout/scripts/demo.sh" || fail "demo.sh trains otherwise"

mkdir -p "$checkout/build/cudnn-frontend/include"
printf '#!/bin/sh\necho /usr/lib/os-release\n' >"$folder/tools/dpkg-query"
run 0 gpu_libraries.sh packed/here.tar.gz
tar --list --file packed/here.tar.gz >"$folder/list.txt" || fail "gpu_libraries.sh packed nothing here"
grep -qx usr/lib/os-release "$folder/list.txt" || fail "gpu_libraries.sh packed other files"
