# step_beside.awk PEER.json, with -v what, mode, rate, utilisation, bytes of Tessera's: a line name|result|ratio|asked|note of
# the same training step by PyTorch (benchmarks/peers), as gpu_table.sh takes it. The ratio is of our tokens a second to
# theirs. Both count the same operations of the model, so that their utilisation follows from ours.
function number() { line = $0; sub(/^[^:]*": */, "", line); sub(/,$/, "", line); return line + 0 }
/^ "tokens_per_second": / { theirs = number() }
/^ "device_bytes": / { taken = number() }
END {
  name = what " beside PyTorch, " mode
  if (rate + 0 <= 0 || theirs <= 0) { print name "|failed|||a rate is missing"; exit }
  note = sprintf("%.0f and %.0f tokens/s", rate, theirs)
  if (utilisation != "") note = note sprintf(", utilisation %.3f and %.3f", utilisation, utilisation * theirs / rate)
  note = note sprintf("; memory %.2f and %.2f GiB", bytes / 2 ^ 30, taken / 2 ^ 30)
  printf "%s|measured|%.3f||%s\n", name, rate / theirs, note
}
