// Products of small bf16 matrices by a processor's matrix unit (Intel's AMX), and whether this process may
// use it. Knows nothing of what the products are for.
#pragma once

#include <cstdint>

#include "kernels/float_types.h"

namespace tessera::kernels::cpu {

// Whether the matrix unit can be used, which is when oneDNN uses it, too: the processor and the system have
// it, this build's compiler knew it, and ONEDNN_MAX_CPU_ISA does not rule it out.
bool has_matrix_unit();

// Configures this thread's matrix unit for multiply() while the object lives. Do not call oneDNN meanwhile:
// it configures the unit for itself. Throws UnsupportedError if there is no matrix unit.
class MatrixUnit {
 public:
  MatrixUnit();
  ~MatrixUnit();
  MatrixUnit(const MatrixUnit&) = delete;
  MatrixUnit& operator=(const MatrixUnit&) = delete;

  struct Extents {
    std::int64_t m, n, k;  // multiples of 32
  };
  // c [m, n] = a [m, k] b [k, n], plus the old c if `add`. Sums are fp32; subnormal numbers count as 0. b is
  // stored by pairs of rows, [k / 2][n][2]. All matrices are dense.
  void multiply(const Extents& extents, const Bf16* a, const Bf16* b, float* c, bool add) const;
};

}  // namespace tessera::kernels::cpu
