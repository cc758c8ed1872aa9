# Of the JSON that a benchmark wrote, a line each: name|result|ratio to the limit|expected|note. The result is "as expected"
# or "below expectation" where a ratio is expected, else measured; failed where the benchmark ended with an error.
function text() { line = $0; sub(/^[^:]*": *"?/, "", line); sub(/"?,?$/, "", line); return line }
function flush() {
  if (name == "") return
  result = expected == "" ? "measured" : ratio + 0 >= expected + 0 ? "as expected" : "below expectation"
  if (error != "") { result = "failed"; note = error }
  else if (ratio == "") { result = "failed"; note = "no ratio was reported" }
  else note = sprintf("%.1f of %.1f %s", kernel, limit, unit)
  gsub(/\|/, "/", note)
  printf "%s|%s|%s|%s|%s\n", name, result, ratio == "" ? "" : sprintf("%.3f", ratio), expected == "" ? "" : sprintf("%.2f", expected), note
}
/^ *"name": / {
  flush()
  name = text(); sub(/\/iterations:.*/, "", name)
  ratio = expected = error = unit = ""
}
/^ *"error_message": / { error = text() }
/^ *"expected": / { expected = text() }
/^ *"kernel\/limit": / { ratio = text() }
/^ *"kernel_[^"]*": / { kernel = text(); unit = $1; gsub(/"(kernel_)?|:/, "", unit) }
/^ *"limit_[^"]*": / { limit = text() }
END { flush() }
