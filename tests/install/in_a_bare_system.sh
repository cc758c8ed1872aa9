#!/bin/sh
# Run by scripts/package.sh as root of a bare Debian, with the packages and the sources of programs beside it: installs, and
# builds programs that know the installed Tessera alone.
set -eu
cd "$(dirname "$0")"
export DEBIAN_FRONTEND=noninteractive
install() { apt-get -qq -o Dpkg::Use-Pty=0 install --yes --no-install-recommends "$@"; }
# expect WHAT WORD COMMAND...: runs it, and looks for the word in its output.
expect() {
  what=$1 word=$2
  shift 2
  output=$("$@")
  case $output in
    *"$word"*) echo "== $what: $(echo "$output" | tail -n 1)" ;;
    *) echo "$what printed no '$word': $output" >&2; exit 1 ;;
  esac
}
by_cmake() {
  cmake -S "$1" -B "build/$1" -D CMAKE_BUILD_TYPE=Release >/dev/null
  cmake --build "build/$1" >/dev/null
}

install ./tessera_*.deb
expect "the tool" "0." tessera --version
install ./libtessera-dev_*.deb gcc pkg-config
cc -O2 examples/embed_c/spiral.c -o spiral_c $(pkg-config --cflags --libs tessera)
expect "C by pkg-config, without a C++ compiler" accuracy ./spiral_c 2 3 5
install g++ cmake make
c++ -std=c++20 -O2 examples/embed/spiral.cpp -o spiral $(pkg-config --cflags --libs tessera-engine)
expect "C++ by pkg-config" accuracy ./spiral 2 3 5
by_cmake examples/embed_c
expect "C by CMake" accuracy build/examples/embed_c/spiral_c 2 3 5
by_cmake examples/embed
expect "C++ by CMake" accuracy build/examples/embed/spiral 2 3 5
by_cmake consumer
expect "all of the library by CMake" "tessera::tessera links" build/consumer/consumer
