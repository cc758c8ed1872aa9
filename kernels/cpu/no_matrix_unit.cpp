// In the place of matrix_unit.cpp, for processors and compilers that do not know AMX.
#include "kernels/cpu/matrix_unit.h"
#include "tessera/error.h"

namespace tessera::kernels::cpu {

bool has_matrix_unit() { return false; }

MatrixUnit::MatrixUnit() {
  throw UnsupportedError("this build's compiler or processor knows no matrix unit for bf16 (AMX)");
}
MatrixUnit::~MatrixUnit() = default;
void MatrixUnit::multiply(const Extents&, const Bf16*, const Bf16*, float*, bool) const {}

}  // namespace tessera::kernels::cpu
