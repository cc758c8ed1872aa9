# adamw_beside.awk OURS THEIRS: of what bench_cuda_kernels and benchmarks/peers/torch_adamw.py wrote about the same
# numel, a line for each type: name|result|ratio|expected|note, as benchmark_rows.awk. The ratio is of our rate to that
# of PyTorch's fused AdamW. It is expected of bf16 alone: fp32 needs no casts, so that both are near the memory's limit.
function text() { line = $0; sub(/^[^:]*": *"?/, "", line); sub(/"?,?$/, "", line); return line }
FNR == 1 { ++file }
file == 1 && /^ *"name": / { split(text(), parts, "/"); type = parts[1] == "adamw" ? parts[2] : "" }
file == 1 && /^ *"kernel_GB\/s": / && type != "" { ours[type] = text() }
file == 2 && /^ *"type": / { type = text() }
file == 2 && /^ *"kind": / { kind = text() }
file == 2 && /^ *"GB\/s": / && kind == "fused" { theirs[type] = text() }
END {
  count = split("bf16 fp32", types, " ")
  for (i = 1; i <= count; ++i) {
    type = types[i]
    expected = type == "bf16" ? 1.3 : 0
    printf "AdamW %s beside PyTorch|", type
    if (ours[type] + 0 <= 0 || theirs[type] + 0 <= 0) { print "failed|||a rate is missing"; continue }
    ratio = ours[type] / theirs[type]
    result = expected == 0 ? "measured" : ratio >= expected ? "as expected" : "below expectation"
    printf "%s|%.3f|%s|%.1f and %.1f GB/s\n", result, ratio, expected == 0 ? "" : expected, ours[type], theirs[type]
  }
}
