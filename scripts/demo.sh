#!/usr/bin/env bash
# Trains a small GPT on text for about a minute, sharded over two ranks: installs what is missing, builds the
# tool, runs it.
#   scripts/demo.sh [TEXTFILE]      the default text is the licences that Debian systems hold
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

[ $# -le 1 ] || refuse "'$2' is one argument too many"
text=
if [ $# -eq 1 ]; then
  text=$(path_of "$1")
  [ -f "$text" ] && [ -r "$text" ] || { echo "demo: cannot read the text file '$1'" >&2; exit 1; }
fi
if [ -z "$text" ]; then
  licences=/usr/share/common-licenses
  [ -d "$licences" ] || { echo "demo: this system has no $licences; name a text file: scripts/demo.sh FILE" >&2; exit 1; }
  text=$root/build/demo/licences.txt
  mkdir -p "$(dirname "$text")"
  # Files only: a link would repeat the text it points to.
  find "$licences" -maxdepth 1 -type f -print0 | LC_ALL=C sort -z | xargs -0 cat >"$text"
fi

scripts/install_packages.sh
configure release
build release tessera_cli
say "training on $text ($(wc -c <"$text") bytes)"
exec build/release/bin/tessera train examples/train_gpt/demo.toml --set data.train="$text"
