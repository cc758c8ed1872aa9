#!/bin/sh
# bench_test.sh BENCHMARK SCRIPTS: every call of bench_cuda_kernels is legal on small tensors, and what gpu_check.sh makes
# of its results: a row for each, below expectation where the ratio is below the one that is expected.
set -e
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$1" --small --benchmark_out="$folder/ours.json" --benchmark_out_format=json >"$folder/out.txt"
rows() { awk -f "$2/benchmark_rows.awk" "$1"; }
rows "$folder/ours.json" "$2" >"$folder/rows"
cat "$folder/rows"
[ "$(wc -l <"$folder/rows")" = 35 ]
[ "$(grep -c '^attention_.*|measured|[0-9.e-]*||.* TFLOP/s$' "$folder/rows")" = 4 ]
[ "$(grep -c '^\(linear\|head_[a-z_]*\)/.*|measured|[0-9.e-]*||.* TFLOP/s$' "$folder/rows")" = 5 ]
[ "$(grep -c '^[a-z_]*/[0-9]*|measured|[0-9.e-]*||.* GB/s$' "$folder/rows")" = 14 ]
[ "$(grep -c '^[a-z0-9_/]*|\(as expected\|below expectation\)|-\?[0-9.]*|0\.\(85\|92\)|.* GB/s$' "$folder/rows")" = 12 ]

# Figures of which the outcome is known.
cat >"$folder/known.json" <<END
{"context": {
    "executable": "x"
  },
  "benchmarks": [
    {
      "name": "adamw/bf16/64/iterations:2/manual_time",
      "kernel/limit": 9.5000000000000000e-01,
      "kernel_GB/s": 2.6000000000000000e+03,
      "limit_GB/s": 2.7368421052631579e+03,
      "expected": 9.2000000000000004e-01
    },
    {
      "name": "adamw/fp32/64/iterations:2/manual_time",
      "kernel/limit": 9.1000000000000000e-01,
      "kernel_GB/s": 2.5000000000000000e+03,
      "limit_GB/s": 2.7472527472527472e+03,
      "expected": 9.2000000000000004e-01
    },
    {
      "name": "rms_norm_forward/768/iterations:2/manual_time",
      "error_occurred": true,
      "error_message": "rank 0, GPU 0: cannot take an arena"
    }
  ]
}
END
rows "$folder/known.json" "$2" >"$folder/rows"
cat >"$folder/expected" <<END
adamw/bf16/64|as expected|0.950|0.92|2600.0 of 2736.8 GB/s
adamw/fp32/64|below expectation|0.910|0.92|2500.0 of 2747.3 GB/s
rms_norm_forward/768|failed|||rank 0, GPU 0: cannot take an arena
END
diff "$folder/expected" "$folder/rows"
cat >"$folder/theirs.json" <<END
{
 "results": [
  {
   "parameters": 64,
   "type": "fp32",
   "kind": "fused",
   "ms": 1.0,
   "GB/s": 2000.0
  },
  {
   "parameters": 64,
   "type": "bf16",
   "kind": "fused",
   "ms": 1.0,
   "GB/s": 2080.0
  },
  {
   "parameters": 64,
   "type": "bf16",
   "kind": "foreach",
   "ms": 2.0,
   "GB/s": 1000.0
  }
 ]
}
END
awk -f "$2/adamw_beside.awk" "$folder/known.json" "$folder/theirs.json" >"$folder/rows"
cat >"$folder/expected" <<END
AdamW bf16 beside PyTorch|below expectation|1.250|1.3|2600.0 and 2080.0 GB/s
AdamW fp32 beside PyTorch|measured|1.250||2500.0 and 2000.0 GB/s
END
diff "$folder/expected" "$folder/rows"
: >"$folder/theirs.json"
awk -f "$2/adamw_beside.awk" "$folder/known.json" "$folder/theirs.json" | grep -q '^AdamW bf16 beside PyTorch|failed|||a rate is missing$'
