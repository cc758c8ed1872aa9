// Products of small bf16 matrices by a processor's own matrix unit: Intel's AMX. Which processes have it, and
// what it is asked; what the products are for is the caller's.
#pragma once

#include <cstdint>

#include "kernels/float_types.h"

namespace tessera::kernels::cpu {

// Whether oneDNN computes bf16 products with it, too: the processor and the system have it, this build's
// compiler knew it, and ONEDNN_MAX_CPU_ISA does not rule it out.
bool has_matrix_unit();

// Sets this thread's unit up for multiply() as long as it lives. oneDNN, which sets it up for itself, must
// not be called meanwhile. UnsupportedError where there is none.
class MatrixUnit {
 public:
  MatrixUnit();
  ~MatrixUnit();
  MatrixUnit(const MatrixUnit&) = delete;
  MatrixUnit& operator=(const MatrixUnit&) = delete;

  struct Extents {
    std::int64_t m, n, k;  // multiples of 32
  };
  // c [m, n] = a [m, k] b [k, n], added to what c holds where `add`; sums in fp32, subnormal numbers are 0. b
  // is stored by pairs of rows, [k / 2][n][2]; all are dense.
  void multiply(const Extents& extents, const Bf16* a, const Bf16* b, float* c, bool add) const;
};

}  // namespace tessera::kernels::cpu
