#!/bin/sh
# no_division_test.sh NVCC SOURCE_FOLDER: the activations divide by reciprocal_element (exp_math.h). In their PTX is no division
# that ends in a call where a number is small or large.
set -e
ptx=$(mktemp)
trap 'rm -f "$ptx"' EXIT
for name in elementwise swiglu; do
  "$1" -std=c++20 -O3 -DNDEBUG --fmad=false -I"$2" -I"$2/include" -arch=compute_80 -ptx -o "$ptx" "$2/kernels/cuda/$name.cu"
  if grep -nE '(rcp|div)\.(rn|full)' "$ptx"; then echo "$name.cu: divides" && exit 1; fi
  grep -q 'rcp\.approx\.ftz' "$ptx" || { echo "$name.cu: has no reciprocal" && exit 1; }
done
