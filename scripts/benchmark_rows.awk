# Of the JSON that a benchmark wrote, a line each: name|result|ratio to the limit|required|note. The result is passed or
# failed where a ratio is required, else measured; failed, too, where the benchmark ended with an error.
function text() { line = $0; sub(/^[^:]*": *"?/, "", line); sub(/"?,?$/, "", line); return line }
function flush() {
  if (name == "") return
  result = required == "" ? "measured" : ratio + 0 >= required + 0 ? "passed" : "failed"
  if (error != "") { result = "failed"; note = error }
  else if (ratio == "") { result = "failed"; note = "no ratio was reported" }
  else note = sprintf("%.1f of %.1f %s", kernel, limit, unit)
  gsub(/\|/, "/", note)
  printf "%s|%s|%s|%s|%s\n", name, result, ratio == "" ? "" : sprintf("%.3f", ratio), required == "" ? "" : sprintf("%.2f", required), note
}
/^ *"name": / {
  flush()
  name = text(); sub(/\/iterations:.*/, "", name)
  ratio = required = error = unit = ""
}
/^ *"error_message": / { error = text() }
/^ *"required": / { required = text() }
/^ *"kernel\/limit": / { ratio = text() }
/^ *"kernel_[^"]*": / { kernel = text(); unit = $1; gsub(/"(kernel_)?|:/, "", unit) }
/^ *"limit_[^"]*": / { limit = text() }
END { flush() }
