#!/bin/sh
# vector_stores_test.sh NVCC SOURCE_FOLDER: in the PTX of kernels that work on vectors each vector is stored as one. Where
# nvcc loses sight of an address it stores the elements one by one, which are neighbours of one base: [x], [x+2], ...
set -e
ptx=$(mktemp)
trap 'rm -f "$ptx"' EXIT
for name in column_sum embedding norm quantize rotary round_sum swiglu; do
  "$1" -std=c++20 -O3 -DNDEBUG --fmad=false -I"$2" -I"$2/include" -arch=compute_80 -ptx -o "$ptx" "$2/kernels/cuda/$name.cu"
  awk -v source="$name.cu" '
    /\.entry / { kernel = $0; sub(/.*\.entry /, "", kernel); sub(/\(.*/, "", kernel); base = "" }
    /st\.global\.v4\./ { ++vectors }
    /st\.global\.[a-z](16|32)[ \t]/ {
      place = $0; gsub(/.*\[|\].*/, "", place)
      bytes = $0 ~ /16[ \t]/ ? 2 : 4
      count = split(place, part, "+")
      offset = count > 1 ? part[2] : 0
      if (part[1] == base && offset == last + bytes && !reported[kernel]++) { print source ": split in " kernel; bad = 1 }
      base = part[1]; last = offset
    }
    END {
      if (vectors == 0) { print source ": no vector is stored"; bad = 1 }
      print source ": " vectors + 0 " stores of vectors"
      exit bad
    }' "$ptx" || failed=1
done
[ -z "$failed" ]
