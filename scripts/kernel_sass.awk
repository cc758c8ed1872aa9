# Of the loads and stores that kernel_sass.sh found in kernels, a table, and what is wrong with it. A memory-bound kernel
# reads and writes by 128 bits. Where it reads one type and writes a narrower one, or the other way round, a vector of the
# narrower has 64: one side is asked for 128 bits, and the other for 64. Scalar accesses besides, of the elements that make no
# vector, are no fault.
BEGIN {
  # Not bound by memory, or of a few elements.
  not_bound = "^(attention_|cached_|advance_word_kernel|set_gate_kernel|add_loss_kernel|total_kernel|add_groups_kernel" \
              "|rotary_table_kernel|occurrences_kernel|sort_|sweep_kernel<1, Losses>)"
  # For tensors that are not aligned to vectors, or whose elements move within them.
  unaligned = "^(square_sum_kernel<.*, false>|column_groups_kernel<.*, 1>|.*Sharing<[0-9]+, 1, 1>|cast_in_place_kernel)"
  reads_only = "^(square_sum_kernel|statistics_kernel)"
  writes_only = "Fill<"
  # Two registers of fp32 LayerNorm over rows that are read twice.
  may_spill = "^norm_backward_kernel<float, 4, true>"
}
# The kernel and its template arguments, without return type, parameters and our namespaces.
function short(name,   i, c, depth) {
  gsub(/tessera::(kernels::|rules::)?|cuda::|\(anonymous namespace\)::|_GLOBAL__N__[0-9a-zA-Z_]*::|\(int\)|\(bool\)/, "", name)
  sub(/^void /, "", name)
  for (i = 1; i <= length(name); ++i) {
    c = substr(name, i, 1)
    if (c == "<") ++depth
    if (c == ">") --depth
    if (c == "(" && depth == 0) return substr(name, 1, i - 1)
  }
  return name
}
function widest(side) { return wide[side, 128] ? 128 : wide[side, 64] ? 64 : wide[side, 32] ? 32 : 0 }
function judge() {
  if (kernel == "") return
  ++kernels
  load = widest("L"); store = widest("S")
  fault = ""
  if (kernel !~ not_bound && kernel !~ unaligned) {
    ++bound
    if (kernel ~ reads_only) store = 128
    if (kernel ~ writes_only) load = 128
    if (load < 64 || store < 64 || load + store < 192) fault = fault " narrow"
    if (local > 0 && kernel !~ may_spill) fault = fault " local"
  }
  if (fault != "") ++bad
  printf "%-84s %4s %5d %4d %5d %4d %5d %s\n", kernel, architecture, wide["L", 128], wide["L", 64], wide["S", 128], \
    wide["S", 64], local, fault
}
/Function :/ {
  judge()
  kernel = $0; sub(/.*Function : /, "", kernel); kernel = short(kernel)
  split("", wide); local = 0
  if (!titled++)
    printf "%-84s %4s %5s %4s %5s %4s %5s %s\n", "kernel", "arch", "LD128", "LD64", "ST128", "ST64", "local", "fault"
}
/ (LDG|STG)/ { ++wide[/LDG/ ? "L" : "S", /\.(128|256)/ ? 128 : /\.64[ .]/ ? 64 : 32] }
/ (LDL|STL)/ { ++local }
END {
  judge()
  if (kernels == 0) { print "no kernel was found for sm_" architecture > "/dev/stderr"; exit 1 }
  printf "%d kernels, %d of them memory-bound, %d of these with a fault\n", kernels, bound, bad
  if (bad > 0) print "kernels that memory does not bind, or that are for unaligned tensors, are named in scripts/kernel_sass.awk"
  exit bad > 0
}
