#!/usr/bin/env bash
# links_test.sh SOURCES: in every Markdown file each relative link leads to a file that exists and, where it names one, to a
# heading of that file; and each path in `backquotes` that begins with a folder of the sources exists, but for those in
# benchmarks/results, which tell of an earlier tree. Links to other sites are not opened.
set -euo pipefail

# headings FILE: an anchor a line, made of its headings as GitHub makes them: in lower case, without punctuation, with
# hyphens for spaces, and with -1, -2, … behind a repeated one.
headings() {
  awk '/^```/ { code = !code; next }
       !code && /^#+ / {
         sub(/^#+ +/, ""); anchor = tolower($0)
         gsub(/\]\([^)]*\)/, "", anchor); gsub(/[^[:alnum:] _-]/, "", anchor); gsub(/ /, "-", anchor)
         print anchor (seen[anchor]++ ? "-" seen[anchor] - 1 : "")
       }' "$1"
}

# links FILE: the target of every link, one a line, without those in code.
links() {
  awk '/^```/ { code = !code } !code { gsub(/`[^`]*`/, ""); printf "%s ", $0 }' "$1" |
    grep -oE '\]\([^)]*\)' | sed -E 's/^\]\((.*)\)$/\1/' || true
}

# paths FILE: every path in backquotes, one a line: what is all of a quote and has no blank or bracket. It may end in *.
paths() {
  grep -oE '`(\.ci|benchmarks|cmake|docs|examples|fuzz|include|kernels|optim|scripts|src|tests)/[^]` (){}<>:…]*`' "$1" |
    tr -d '`' || true
}

# broken SOURCES: a line for each link, and each path, that leads nowhere.
broken() {
  local file target path anchor
  (cd "$1" && find . \( -name .git -o -path ./build \) -prune -o -name '*.md' -print | LC_ALL=C sort) | while read -r file; do
    links "$1/$file" | while IFS= read -r target; do
      case $target in *://* | mailto:*) continue ;; esac
      path=${target%%#*} anchor=
      [[ $target != *#* ]] || anchor=${target#*#}
      if [ -n "$path" ]; then path=$(dirname "$1/$file")/$path; else path=$1/$file; fi
      if [ ! -e "$path" ]; then
        echo "${file#./}: the link '$target' leads to no file"
      elif [ -n "$anchor" ] && ! headings "$path" | grep -qxF -- "$anchor"; then
        echo "${file#./}: the link '$target' leads to no heading of ${path#"$1"/}"
      fi
    done
    case $file in ./benchmarks/results/*) continue ;; esac
    paths "$1/$file" | while IFS= read -r path; do
      # A program or test is named without the ending of its source.
      compgen -G "$1/$path" >/dev/null || compgen -G "$1/$path.*" >/dev/null ||
        echo "${file#./}: there is no '$path'"
    done
  done
}

# The check itself first: it has to find what is wrong, and nothing else.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/docs"
cat >"$folder/README.md" <<'END'
# Title
[file](docs/page.md) [heading](docs/page.md#two-words-and-code) [again](docs/page.md#twice-1) [here](#title)
[over
two lines](docs/page.md#twice) [other site](https://example.org/none.md) `[code](none.md)`
```
[code](none.md)
# Not a heading
```
[1](docs/none.md) [2](docs/page.md#none) [3](#not-a-heading) [4](docs/page.md#twice-2)
`docs/page.md` `docs/page` `docs/p*.md` `docs/PAGE.md FILE` `docs/gone.md` `docs/q*`
END
printf '# Two words, and `code`\n## Twice\n## Twice\n[back](../README.md)\n[5](README.md)\n' >"$folder/docs/page.md"
found=$(broken "$folder" | sed -E "s/^([^:]*): (the link|there is no) '([^']*)'.*/\1 \3/")
expected='README.md docs/none.md
README.md docs/page.md#none
README.md #not-a-heading
README.md docs/page.md#twice-2
README.md docs/gone.md
README.md docs/q*
docs/page.md README.md'
[ "$found" = "$expected" ] || { printf 'the check is wrong; it finds\n%s\nand should find\n%s\n' "$found" "$expected"; exit 1; }

found=$(broken "$1")
[ -z "$found" ] || { echo "$found"; exit 1; }
